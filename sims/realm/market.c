/* The market: what agents offer one another, for how much, and the book of all gold.
 *
 * What is on offer stays in its seller's slot. Of each item and each price there is a list of offers, oldest
 * first, linked through the slots, so that offering, taking back and finding the cheapest take no search. */
#include "realm.h"

/* Gold changes hands only through here. */
void count_gold(realm *w, int32_t i, int32_t change) {
    w->life[i].gold += change;
    int32_t gold = w->life[i].gold;
    w->agent[i].gold_seen = (uint8_t)(gold < SIM_CODES - 1 ? gold : SIM_CODES - 1);
}

void open_market(realm *w) {
    memset(w->s->first, -1, sizeof w->s->first);
    memset(w->s->last, -1, sizeof w->s->last);
    memset(w->s->prices, 0, sizeof w->s->prices);
    memset(w->asked, 0, (size_t)w->set.agents * SLOTS);
}

void offer(realm *w, int32_t i, int slot, int price) {
    agent *a = &w->agent[i];
    int item = a->item[slot];
    if (item == 0 || a->slot[slot] != CARRIED) return;
    int32_t one = i * SLOTS + slot;
    int32_t *first = &w->s->first[item][price - 1], *last = &w->s->last[item][price - 1];
    w->before[one] = *last;
    w->after[one] = -1;
    *(*last < 0 ? first : &w->after[*last]) = one;
    *last = one;
    w->s->prices[item] |= (uint16_t)(1 << (price - 1));
    w->asked[one] = (uint8_t)price;
    a->slot[slot] = ON_OFFER;
}

void withdraw(realm *w, int32_t i, int slot) {
    agent *a = &w->agent[i];
    int32_t one = i * SLOTS + slot, after = w->after[one], before = w->before[one];
    int item = a->item[slot], price = w->asked[one];
    *(before < 0 ? &w->s->first[item][price - 1] : &w->after[before]) = after;
    *(after < 0 ? &w->s->last[item][price - 1] : &w->before[after]) = before;
    if (w->s->first[item][price - 1] < 0) w->s->prices[item] &= (uint16_t) ~(1 << (price - 1));
    w->asked[one] = 0;
    a->slot[slot] = CARRIED;
}

int cheapest(const realm *w, int item) { return __builtin_ffs(w->s->prices[item]); }

/* The cheapest offer that is not the buyer's own; of equal ones the oldest. */
static int32_t best_offer(const realm *w, int32_t buyer, int item) {
    for (uint32_t prices = w->s->prices[item]; prices != 0; prices &= prices - 1) {
        int32_t one = w->s->first[item][__builtin_ctz(prices)];
        while (one >= 0 && one / SLOTS == buyer) one = w->after[one]; /* at most SLOTS of them */
        if (one >= 0) return one;
    }
    return -1;
}

void buy(realm *w, int32_t i, int item) {
    agent *a = &w->agent[i];
    int free_slot = empty_slot(a);
    int32_t one = best_offer(w, i, item);
    if (free_slot == SLOTS || one < 0 || w->asked[one] > w->life[i].gold) return;
    int32_t seller = one / SLOTS, slot = one % SLOTS, price = w->asked[one];
    withdraw(w, seller, slot);
    w->agent[seller].item[slot] = 0;
    a->item[free_slot] = (uint8_t)item;
    count_gold(w, i, -price);
    count_gold(w, seller, price);
    w->agent[seller].sold++;
    a->bought++;
    w->life[seller].sold++;
    w->life[i].bought++;
}
