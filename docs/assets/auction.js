// A small ad auction to play with: move a bid or a predicted CTR and see who is shown, what a click costs, and what
// the mistake of a prediction costs everyone. The formulas are those of bidwise.run_auction.
"use strict";

(function () {
  const START = [
    { name: "Shoes", bid: 2.0, ctr: 0.05, truth: 0.05 },
    { name: "Loans", bid: 10.0, ctr: 0.009, truth: 0.009 },
    { name: "Games", bid: 0.9, ctr: 0.13, truth: 0.13 },
    { name: "Hotels", bid: 4.0, ctr: 0.018, truth: 0.018 },
  ];
  const SLOTS = [1.0, 0.6];
  const PRICINGS = { gsp: "GSP", vcg: "VCG", first_price: "first price" };

  /** Ads in the order of the auction, highest eCPM first; equal scores go to the higher bid. */
  function ranking(ads, chance) {
    return ads.map((ad, row) => ({ ad, row, score: ad.bid * ad[chance] }))
      .sort((a, b) => b.score - a.score || b.ad.bid - a.ad.bid);
  }

  /** Who is shown in which slot, and the price of a click there: t_l = eCPM of the ad in slot l + 1 / own CTR. */
  function sell(ads, slots, pricing) {
    const order = ranking(ads, "ctr");
    const enough = (own, l) => {
      const rival = l + 1 < order.length ? order[l + 1].score : 0;
      return own.ctr > 0 ? rival / own.ctr : 0;
    };
    return slots.slice(0, order.length).map((alpha, k) => {
      const own = order[k].ad;
      let price = own.bid;
      if (pricing === "gsp") price = enough(own, k);
      if (pricing === "vcg") {
        price = 0;
        for (let l = k; l < slots.length; l++) {
          price += (slots[l] - (slots[l + 1] || 0)) * enough(own, l);
        }
        price /= alpha;
      }
      return { row: order[k].row, alpha, price: Math.min(price, own.bid) };
    });
  }

  /** Sum over slots of alpha times bid times true CTR; with the best order if chance is "truth". */
  function welfare(ads, slots, chance) {
    return ranking(ads, chance).slice(0, slots.length)
      .reduce((sum, { ad }, k) => sum + slots[k] * ad.bid * ad.truth, 0);
  }

  const percent = (x) => (100 * x).toFixed(1) + " %";
  const money = (x) => x.toFixed(x < 0.1 ? 3 : 2);

  function slider(ad, key, most, step, label, changed) {
    const input = document.createElement("input");
    Object.assign(input, { type: "range", min: key === "bid" ? 0.1 : 0, max: most, step, value: ad[key] });
    input.setAttribute("aria-label", label);
    input.addEventListener("input", () => { ad[key] = Number(input.value); changed(); });
    return input;
  }

  function cell(row, className) {
    const td = document.createElement("td");
    if (className) td.className = className;
    row.append(td);
    return td;
  }

  function build(root) {
    const ads = START.map((ad) => ({ ...ad }));
    let pricing = "gsp";
    root.innerHTML = `
      <p class="auction-controls"><label>Pricing <select aria-label="pricing"></select></label>
        <button type="button">Start again</button></p>
      <div class="auction-scroll"><table><thead><tr><th>ad</th><th>bid per click</th><th>predicted CTR</th>
        <th>true CTR</th><th>predicted eCPM</th><th>slot</th><th>price per click</th></tr></thead>
        <tbody></tbody></table></div>
      <p class="auction-sum" role="status"></p>`;
    const select = root.querySelector("select"), body = root.querySelector("tbody");
    for (const [value, text] of Object.entries(PRICINGS)) select.add(new Option(text, value));
    select.addEventListener("change", () => { pricing = select.value; show(); });
    const rows = [];

    function fill() {
      body.replaceChildren();
      rows.length = 0;
      ads.forEach((ad, number) => {
        const tr = document.createElement("tr");
        const name = document.createElement("th");
        name.scope = "row";
        name.textContent = ad.name;
        tr.append(name);
        const parts = { tr };
        for (const [key, most, step] of [["bid", 12, 0.1], ["ctr", 0.15, 0.001]]) {
          const td = cell(tr);
          td.append(slider(ad, key, most, step, `${key} of ${ad.name}`, show));
          parts[key] = document.createElement("output");
          td.append(parts[key]);
        }
        cell(tr).textContent = percent(ad.truth);
        for (const key of ["score", "slot", "price"]) parts[key] = cell(tr, key);
        body.append(tr);
        rows[number] = parts;
      });
      show();
    }

    function show() {
      const sold = sell(ads, SLOTS, pricing);
      ads.forEach((ad, row) => {
        const parts = rows[row], slot = sold.findIndex((sale) => sale.row === row);
        parts.bid.textContent = money(ad.bid);
        parts.ctr.textContent = percent(ad.ctr);
        parts.score.textContent = money(ad.bid * ad.ctr);
        parts.slot.textContent = slot < 0 ? "–" : String(slot + 1);
        parts.price.textContent = slot < 0 ? "–" : money(sold[slot].price);
        parts.tr.classList.toggle("shown", slot >= 0);
      });
      const got = welfare(ads, SLOTS, "ctr"), best = welfare(ads, SLOTS, "truth");
      const revenue = sold.reduce((sum, sale) => sum + sale.alpha * ads[sale.row].truth * sale.price, 0);
      const lost = best - got;
      root.querySelector(".auction-sum").textContent =
        `Welfare ${money(got)} of ${money(best)} possible` +
        (lost > 1e-9 ? `: the predictions cost ${money(lost)} (${percent(lost / best)}).` : ": the best ads are shown.") +
        ` Revenue ${money(revenue)}.`;
    }

    root.querySelector("button").addEventListener("click", () => {
      START.forEach((ad, row) => Object.assign(ads[row], ad));
      pricing = select.value = "gsp";
      fill();
    });
    root.auction = { ads, slots: SLOTS, sell: () => sell(ads, SLOTS, pricing) };  // for tests
    fill();
  }

  function start() {
    const root = document.getElementById("auction");
    if (root && !root.auction) build(root);
  }
  if (document.readyState === "loading") document.addEventListener("DOMContentLoaded", start);
  else start();
})();
