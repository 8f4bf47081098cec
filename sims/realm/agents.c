/* An agent's life: birth, what each action does, and its end. */
#include "realm.h"

static void appear(realm *w, int32_t i, int32_t tile) {
    w->tile[i] = tile;
    w->occupant[tile] = i + 1;
    crowd_flip(w, tile);
}

static void vanish(realm *w, int32_t i) {
    int32_t tile = w->tile[i];
    show_nobody(cell(w, tile));
    w->occupant[tile] = 0;
    crowd_flip(w, tile);
}

/* Somewhere on free land, with a tool of the lowest tier and nothing else. */
void be_born(realm *w, int32_t i) {
    agent *a = &w->agent[i];
    memset(a, 0, sizeof *a);
    a->combat = 1;
    a->max_health = HEALTH + 1;
    a->health = a->max_health;
    a->facing = (uint8_t)rng_below(&w->s->random, WAYS);
    a->item[0] = item_of(PICK + (int)rng_below(&w->s->random, SKILLS), 0);
    a->born = 1;
    w->life[i] = (life){.born = w->s->tick, .progressed = w->s->tick};
    appear(w, i, free_land(w));
    show_agent(w, i);
}

void pass_away(realm *w, int32_t i) {
    for (int slot = 0; slot < SLOTS; slot++)
        if (w->agent[i].slot[slot] == ON_OFFER) withdraw(w, i, slot);
    w->s->sunk += w->life[i].gold;
    vanish(w, i);
}

/* Turns, and goes there if it is free. */
static bool go(realm *w, int32_t i, int way) {
    w->agent[i].facing = (uint8_t)way;
    int32_t to = w->tile[i] + w->step[way];
    if (!is_free(cell(w, to))) return false;
    vanish(w, i);
    appear(w, i, to);
    return true;
}

/* Rests, and takes what has grown under it. */
static void wait_a_tick(realm *w, int32_t i) {
    agent *a = &w->agent[i];
    if (a->in_combat == 0 && a->health < a->max_health) a->health++;
    pick_up(w, i);
}

static void open_menu(agent *a, int menu) {
    a->menu = a->in_combat > 0 && menu != MENU_DROP ? MENU_NONE : (uint8_t)menu;
    a->choice = 0;
}

static void drop(realm *w, int32_t i, int slot) {
    agent *a = &w->agent[i];
    int item = a->item[slot];
    if (item == 0 || item_on(cell(w, w->tile[i])) != 0) return;
    if (a->slot[slot] == ON_OFFER) withdraw(w, i, slot);
    take_off(w, i, slot);
    a->item[slot] = 0;
    leave(w, w->tile[i], item);
}

/* A slot to be sold must hold something; what is worn is taken off, what is on offer is taken back. */
static void pick_for_sale(realm *w, int32_t i, int slot) {
    agent *a = &w->agent[i];
    if (a->item[slot] == 0) return;
    if (a->slot[slot] == ON_OFFER) withdraw(w, i, slot);
    take_off(w, i, slot);
    a->menu = MENU_PRICE;
    a->choice = (uint8_t)(1 + slot);
}

/* A key, 0 to 11, in the menu that is open: the next menu or the deed, else the menu just closes. */
static void choose(realm *w, int32_t i, int key) {
    agent *a = &w->agent[i];
    int menu = a->menu, choice = a->choice;
    open_menu(a, MENU_NONE);
    if (menu == MENU_GEAR || (menu == MENU_GOODS && key < KINDS - ORE)) {
        a->menu = MENU_TIER;
        a->choice = (uint8_t)(menu == MENU_GEAR ? HOOD + key : ORE + key);
    } else if (menu == MENU_TIER && key < TIERS) {
        buy(w, i, item_of(choice, key));
    } else if (menu == MENU_SELL) {
        pick_for_sale(w, i, key);
    } else if (menu == MENU_PRICE) {
        offer(w, i, choice - 1, 1 + key);
    } else if (menu == MENU_DROP) {
        drop(w, i, key);
    }
}

static void press(realm *w, int32_t i, int key) {
    if (w->agent[i].menu == MENU_NONE)
        use(w, i, key);
    else
        choose(w, i, key);
}

/* Keys go to the open menu; every other action closes it. */
void live_on(realm *w, int32_t i, int32_t action) {
    agent *a = &w->agent[i];
    a->animation = STILL;
    a->in_combat -= a->in_combat > 0;
    a->health += w->s->tick % HEALING_TICKS == 0 && a->health < a->max_health;
    if (action >= ACT_KEY && action < ACT_KEY + SLOTS) {
        press(w, i, action - ACT_KEY);
    } else {
        open_menu(a, MENU_NONE);
        if (action < ACT_WALK + WAYS) {
            if (go(w, i, action - ACT_WALK)) pick_up(w, i);
            a->animation = WALK;
        } else if (action >= ACT_RUN) {
            if (go(w, i, action - ACT_RUN)) (void)go(w, i, action - ACT_RUN);
            a->animation = RUN;
        } else if (action == ACT_WAIT) {
            wait_a_tick(w, i);
        } else if (action == ACT_ATTACK) {
            attack(w, i);
        } else {
            open_menu(a, action == ACT_BUY_GEAR    ? MENU_GEAR
                         : action == ACT_BUY_GOODS ? MENU_GOODS
                         : action == ACT_SELL      ? MENU_SELL
                                                   : MENU_DROP);
        }
    }
    show_agent(w, i);
}
