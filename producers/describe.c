/* A simulator's spec as JSON, for the supervisor. */
#include "describe.h"

#include <stdio.h>

#include "../ringbuf/plan.h"
#include "../sims/host.h"

static void print_string(const char *text) {
    putchar('"');
    for (const unsigned char *c = (const unsigned char *)(text ? text : ""); *c; c++) {
        if (*c == '"' || *c == '\\') printf("\\%c", *c);
        else if (*c < 0x20) printf("\\u%04x", *c);
        else putchar(*c);
    }
    putchar('"');
}

static const char *const kinds[] = {[SIM_INT] = "int", [SIM_FLOAT] = "float", [SIM_BOOL] = "bool"};
static const char *const dtypes[] = {
    [SIM_UINT8] = "uint8", [SIM_INT8] = "int8", [SIM_INT32] = "int32", [SIM_FLOAT32] = "float32"};

static void print_named(const char *name, const char *help) {
    printf("{\"name\":");
    print_string(name);
    printf(",\"help\":");
    print_string(help);
}

/* Bytes of one saved world, the host's part included; 0 if it cannot be saved. */
static size_t state_bytes(const sim_api *api, const double *values) {
    sim_host host;
    const uint64_t seed = 0;
    if (host_create(&host, api, values, 1, &seed) < 0) return 0;
    size_t bytes = host_state_bytes(&host, 0);
    host_destroy(&host);
    return bytes;
}

/* What the bytes of an observation mean: `grid` and `coded`. */
static void print_meaning(const sim_shape *shape) {
    if (shape->grid_planes == 0) {
        printf(",\"grid\":null");
    } else {
        printf(",\"grid\":{\"rows\":%d,\"columns\":%d,\"planes\":%d,\"values\":[", shape->grid_rows,
               shape->grid_columns, shape->grid_planes);
        for (int p = 0; p < shape->grid_planes; p++) printf("%s%d", p ? "," : "", shape->grid_values[p]);
        printf("]}");
    }
    printf(",\"coded\":%d", shape->coded);
}

int describe(const sim_api *api, const double *values) {
    sim_shape shape = {0};
    int status = api->shape(values, &shape);
    if (status < 0) return status;
    if (!host_shape_fits(&shape) || shape.obs_dims < 1) return -1;

    printf("{\"abi\":%u,\"hr_abi\":%u,", SIM_ABI, HR_ABI);
    printf("\"name\":");
    print_string(api->name);
    printf(",\"help\":");
    print_string(api->help);
    printf(",\"params\":[");
    for (int i = 0; i < api->n_params; i++) {
        const sim_param *p = &api->params[i];
        if (i) putchar(',');
        print_named(p->name, p->help);
        printf(",\"kind\":\"%s\",\"default\":%.17g,\"low\":%.17g,\"high\":%.17g}", kinds[p->kind], p->value, p->low,
               p->high);
    }
    printf("],\"statistics\":[");
    for (int i = 0; i < api->n_statistics; i++) {
        if (i) putchar(',');
        print_named(api->statistics[i].name, api->statistics[i].help);
        putchar('}');
    }
    printf("],\"score\":%d,\"agents\":%d,\"obs\":{\"dtype\":\"%s\",\"shape\":[", api->score, shape.agents,
           dtypes[shape.obs_dtype]);
    for (int i = 0; i < shape.obs_dims; i++) printf("%s%d", i ? "," : "", shape.obs_shape[i]);
    putchar(']');
    print_meaning(&shape);
    printf("},\"heads\":[");
    for (int i = 0; i < shape.heads; i++) {
        if (i) putchar(',');
        if (shape.head[i].choices > 0) printf("{\"choices\":%d}", shape.head[i].choices);
        else printf("{\"low\":%.9g,\"high\":%.9g}", (double)shape.head[i].low, (double)shape.head[i].high);
    }
    printf("],\"mask\":%s,\"save\":%s,\"state_bytes\":%zu,\"render_text\":%s,\"render_rgb\":%s}\n", shape.has_mask ? "true" : "false",
           api->save && api->load && api->state_bytes ? "true" : "false", state_bytes(api, values),
           api->render_text ? "true" : "false",
           api->render_rgb ? "true" : "false");
    return 0;
}
