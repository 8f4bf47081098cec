/* Hosting many worlds of one simulator: see host.h. */
#include "host.h"

#include <stdlib.h>
#include <string.h>

/* Whether the meaning of the bytes of an observation, where there is one, is possible. */
static int meaning_fits(const sim_shape *s) {
    if (s->grid_planes == 0 && s->coded == 0) return s->grid_rows == 0 && s->grid_columns == 0;
    if (s->obs_dtype != SIM_UINT8 || s->obs_dims != 1 || s->coded < 0) return 0;
    if (s->grid_planes < 0 || s->grid_planes > SIM_MAX_PLANES) return 0;
    if ((s->grid_rows > 0) != (s->grid_planes > 0) || (s->grid_columns > 0) != (s->grid_planes > 0)) return 0;
    for (int p = 0; p < s->grid_planes; p++)
        if (s->grid_values[p] < 1 || s->grid_values[p] > 256) return 0;
    int64_t cells = (int64_t)s->grid_rows * s->grid_columns;
    return cells >= 0 && cells <= s->obs_shape[0] && cells * s->grid_planes + s->coded <= s->obs_shape[0];
}

int host_shape_fits(const sim_shape *s) {
    if (s->agents < 1 || s->heads < 1 || s->heads > SIM_MAX_HEADS) return 0;
    if (s->obs_dtype < SIM_UINT8 || s->obs_dtype > SIM_FLOAT32) return 0;
    if (s->obs_dims < 0 || s->obs_dims > SIM_MAX_DIMS) return 0;
    for (int i = 0; i < s->obs_dims; i++)
        if (s->obs_shape[i] < 1) return 0;
    for (int i = 0; i < s->heads; i++)
        if ((s->head[i].choices > 0) != (s->head[0].choices > 0)) return 0;
    return meaning_fits(s);
}

/* Row sizes; 0 if the shape breaks a limit of sim.h. */
static int measure(sim_host *h) {
    const sim_shape *s = &h->shape;
    if (!host_shape_fits(s) || s->agents > INT32_MAX / h->worlds) return 0;
    h->agents = h->worlds * s->agents;
    h->obs_row = host_dtype_bytes(s->obs_dtype);
    for (int i = 0; i < s->obs_dims; i++) h->obs_row *= (size_t)s->obs_shape[i];
    h->action_row = (size_t)s->heads * 4;
    h->mask_row = 0;
    for (int i = 0; s->has_mask && i < s->heads; i++) h->mask_row += s->head[i].choices;
    return 1;
}

size_t host_bytes(void) { return sizeof(sim_host); }

void *host_world(const sim_host *h, int32_t world) { return h->world[world]; }

void host_world_seeds(uint64_t run_seed, uint64_t first, int32_t count, uint64_t restart, uint64_t domain,
                      uint64_t *out) {
    for (int32_t i = 0; i < count; i++)
        out[i] = sim_world_seed(run_seed, first + (uint64_t)i, restart, domain);
}

int host_create(sim_host *h, const sim_api *api, const double *params, int32_t worlds,
                const uint64_t *seeds) {
    *h = (sim_host){.api = api, .worlds = worlds, .inside = -1};
    if (worlds < 1 || api->shape(params, &h->shape) < 0 || !measure(h)) return HOST_SHAPE;
    size_t agents = (size_t)h->agents, statistics = agents * (size_t)api->n_statistics;
    h->world = calloc((size_t)worlds, sizeof *h->world);
    h->pending = calloc(agents, sizeof *h->pending);
    h->returns = calloc(agents, sizeof *h->returns);
    h->lengths = calloc(agents, sizeof *h->lengths);
    h->statistics = calloc(statistics + 1, sizeof *h->statistics);
    int complete = h->world != NULL && h->pending != NULL && h->returns != NULL && h->lengths != NULL &&
                   h->statistics != NULL;
    for (int32_t w = 0; complete && w < worlds; w++) {
        h->inside = w;
        h->world[w] = api->create(params, seeds[w]);
        h->inside = -1;
        complete = h->world[w] != NULL;
    }
    if (complete) return 0;
    host_destroy(h);
    return HOST_MEMORY;
}

void host_destroy(sim_host *h) {
    for (int32_t w = 0; h->world != NULL && w < h->worlds; w++)
        if (h->world[w] != NULL) h->api->destroy(h->world[w]);
    free(h->world);
    free(h->pending);
    free(h->returns);
    free(h->lengths);
    free(h->statistics);
    *h = (sim_host){.inside = -1};
}

/* What a function of world `w` returned, once it has. */
static int left(sim_host *h, int32_t w, int result) {
    h->inside = -1;
    if (result < 0) h->failed_world = w;
    return result;
}

int host_reset(sim_host *h, void *obs, uint8_t *mask) {
    size_t per_world = (size_t)h->shape.agents;
    if (h->mask_row > 0) memset(mask, 1, (size_t)h->agents * (size_t)h->mask_row);
    memset(h->pending, 0, (size_t)h->agents * sizeof *h->pending);
    memset(h->returns, 0, (size_t)h->agents * sizeof *h->returns);
    memset(h->lengths, 0, (size_t)h->agents * sizeof *h->lengths);
    for (int32_t w = 0; w < h->worlds; w++) {
        size_t row = (size_t)w * per_world;
        sim_io io = {.obs = (uint8_t *)obs + row * h->obs_row};
        if (h->mask_row > 0) io.mask = mask + row * (size_t)h->mask_row;
        h->inside = w;
        int error = left(h, w, h->api->reset(h->world[w], &io));
        if (error < 0) return error;
    }
    return 0;
}

/* Agent i has ended: writes its record and begins its next one. */
static void *record(sim_host *h, int32_t i, void *at) {
    size_t n = (size_t)h->api->n_statistics;
    host_episode *episode = at;
    *episode = (host_episode){.agent = i, .length = h->lengths[i], .value = (float)h->returns[i]};
    memcpy(episode->statistics, h->statistics + (size_t)i * n, n * sizeof(float));
    h->returns[i] = 0.0;
    h->lengths[i] = 0;
    return (uint8_t *)at + host_episode_bytes(h->api);
}

int host_step_range(sim_host *h, int32_t first, int32_t count, const host_rows *rows, void *episodes) {
    const sim_api *api = h->api;
    int32_t per_world = h->shape.agents, begin = first * per_world, end = (first + count) * per_world;
    size_t n = (size_t)(end - begin), mask_row = (size_t)h->mask_row;
    memset(rows->rewards + begin, 0, n * sizeof *rows->rewards);
    memset(rows->terminated + begin, 0, n);
    memset(rows->truncated + begin, 0, n);
    if (mask_row > 0) memset(rows->mask + (size_t)begin * mask_row, 1, n * mask_row);

    for (int32_t w = first; w < first + count; w++) {
        size_t row = (size_t)w * (size_t)per_world;
        sim_io io = {
            .actions = (const uint8_t *)rows->actions + row * h->action_row,
            .obs = (uint8_t *)rows->obs + row * h->obs_row,
            .mask = mask_row > 0 ? rows->mask + row * mask_row : NULL,
            .rewards = rows->rewards + row,
            .terminated = rows->terminated + row,
            .truncated = rows->truncated + row,
            .statistics = h->statistics + row * (size_t)api->n_statistics,
        };
        h->inside = w;
        int error = left(h, w, api->step(h->world[w], &io));
        if (error < 0) return error;
    }

    void *at = episodes;
    int finished = 0;
    for (int32_t i = begin; i < end; i++) {
        uint8_t valid = !h->pending[i];
        uint8_t terminated = valid && rows->terminated[i];
        uint8_t truncated = valid && !terminated && rows->truncated[i];
        float reward = valid ? rows->rewards[i] : 0.0f;
        rows->rewards[i] = reward;
        rows->terminated[i] = terminated;
        rows->truncated[i] = truncated;
        rows->valid[i] = valid;
        h->pending[i] = truncated;
        h->returns[i] += (double)reward;
        h->lengths[i] += valid;
        if (terminated || truncated) {
            at = record(h, i, at);
            finished++;
        }
    }
    return finished;
}

int host_step(sim_host *h, const host_rows *rows, void *episodes) {
    return host_step_range(h, 0, h->worlds, rows, episodes);
}

int64_t host_play(sim_host *h, const host_rows *rows, int32_t steps, void *episodes) {
    host_rows now = *rows;
    int64_t finished = 0;
    for (int32_t t = 0; t < steps; t++) {
        now.actions = (const uint8_t *)rows->actions + (size_t)t * (size_t)h->agents * h->action_row;
        int result = host_step(h, &now, episodes);
        if (result < 0) return result;
        finished += result;
    }
    return finished;
}

/* The host's part of a saved world, one after the other for its agents. */
typedef struct saved_agent {
    double value;
    int32_t length, pending;
} saved_agent;

size_t host_state_bytes(const sim_host *h, int32_t world) {
    if (h->api->state_bytes == NULL || h->api->save == NULL || h->api->load == NULL) return 0;
    return h->api->state_bytes(h->world[world]) + (size_t)h->shape.agents * sizeof(saved_agent);
}

int host_save(sim_host *h, int32_t world, void *out) {
    h->inside = world;
    int error = left(h, world, h->api->save(h->world[world], out));
    if (error < 0) return error;
    uint8_t *at = (uint8_t *)out + h->api->state_bytes(h->world[world]);
    for (int32_t i = 0; i < h->shape.agents; i++, at += sizeof(saved_agent)) {
        int32_t agent = world * h->shape.agents + i;
        saved_agent saved = {h->returns[agent], h->lengths[agent], h->pending[agent]};
        memcpy(at, &saved, sizeof saved);
    }
    return 0;
}

int host_load(sim_host *h, int32_t world, const void *state) {
    h->inside = world;
    int error = left(h, world, h->api->load(h->world[world], state));
    if (error < 0) return error;
    const uint8_t *at = (const uint8_t *)state + h->api->state_bytes(h->world[world]);
    for (int32_t i = 0; i < h->shape.agents; i++, at += sizeof(saved_agent)) {
        int32_t agent = world * h->shape.agents + i;
        saved_agent saved;
        memcpy(&saved, at, sizeof saved);
        h->returns[agent] = saved.value;
        h->lengths[agent] = saved.length;
        h->pending[agent] = saved.pending != 0;
    }
    return 0;
}
