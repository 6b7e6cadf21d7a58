// The page: rows come as server-sent events, and what changed is drawn anew. Nothing here reads markup: whatever comes from
// the cluster is put in as text.
'use strict';

/** Load balancers in the table, and in the list of what waits. */
const ROWS = 500;
const WAITS = 20;
/** After so long without a connection the page asks again. */
const AGAIN = 3000;

const at = (id) => document.getElementById(id);
const rows = new Map();
const pools = new Map();
const blocks = new Map();
const balancers = new Map();
const panels = new Map();
let fresh;
let changed = { pools: new Set(), balancers: true };
let frame = 0;

// ---- what is known -------------------------------------------------------------------------------------------------

function clear() {
  for (const map of [rows, pools, blocks, balancers, panels]) map.clear();
  changed = { pools: undefined, balancers: true };
}

function set(name, row) {
  const former = rows.get(name);
  if (row) rows.set(name, row);
  else rows.delete(name);
  switch ((row ?? former)?.kind) {
    case 'pool':
      touchPool((row ?? former).name);
      if (row) pools.set(row.name, row);
      else pools.delete(former.name);
      break;
    case 'block': {
      const pool = (row ?? former).pool;
      touchPool(pool);
      if (!blocks.has(pool)) blocks.set(pool, new Map());
      if (row) blocks.get(pool).set(name, row);
      else blocks.get(pool).delete(name);
      break;
    }
    case 'balancer': {
      const key = keyOf(row ?? former);
      if (row) balancers.set(key, row);
      else balancers.delete(key);
      changed.balancers = true;
      // maps show whether a holder is ready, and quotas count its cluster
      if (row?.state !== former?.state || row?.cluster !== former?.cluster) changed.pools = undefined;
      break;
    }
    case 'panel':
      if (row) panels.set(row.name, row);
      break;
    case 'cluster':
      say(at('where'), `${row.name} · ${row.namespace ? `namespace ${row.namespace}` : 'all namespaces'}`);
      break;
  }
}

function touchPool(name) {
  changed.pools?.add(name);
}

const keyOf = (balancer) => `${balancer.namespace}/${balancer.name}`;

// ---- the connection ------------------------------------------------------------------------------------------------

function live(state, text) {
  at('live').dataset.state = state;
  say(at('live'), text);
}

function connect() {
  const events = new EventSource('/events');
  let staged = [];
  events.onmessage = ({ data }) => {
    const part = JSON.parse(data);
    if (part.reset) {
      staged = [];
      fresh = true;
    }
    staged.push(...part.rows);
    if (!part.complete) return;
    if (fresh) clear();
    fresh = false;
    for (const [name, row] of staged) set(name, row);
    staged = [];
    live('live', 'live');
    draw();
  };
  events.onerror = () => {
    if (events.readyState !== EventSource.CLOSED) {
      live('lost', 'the connection is lost: what you see is old');
      return;
    }
    live('lost', 'no connection: the program has ended, or too many pages are open');
    setTimeout(connect, AGAIN);
  };
}

// ---- drawing -------------------------------------------------------------------------------------------------------

function draw() {
  frame ||= requestAnimationFrame(() => {
    frame = 0;
    const { pools: touched, balancers: touchedBalancers } = changed;
    changed = { pools: new Set(), balancers: false };
    drawGlance();
    drawPanels();
    drawPools(touched);
    if (touchedBalancers) {
      drawWaits();
      drawBalancers();
    }
  });
}

function drawGlance() {
  const sum = (field) => [...pools.values()].reduce((all, pool) => all + BigInt(pool[field]), 0n);
  let [free, total, six] = [0n, 0n, false];
  for (const pool of pools.values()) {
    const of = families(pool);
    free += of.four.free;
    total += of.four.total;
    six ||= of.six.total > 0n;
  }
  const all = [...balancers.values()];
  const states = (state) => all.filter((balancer) => balancer.state === state).length;
  let [good, bad] = [0, 0];
  for (const balancer of all) {
    good += balancer.good;
    bad += balancer.bad;
  }
  const waits = states('waits');
  const tiles = [
    ['Addresses free', pools.size ? count(free) : '–', `of ${count(total)} in ${plural(pools.size, 'pool')}${six ? ', and IPv6' : ''}`],
    ['Addresses held', pools.size ? count(sum('held')) : '–', restAndDrain(sum('resting'), sum('draining'))],
    ['Load balancers ready', count(states('ready')), `of ${count(all.length)}`],
    ['Waiting', count(waits), waits ? 'the reasons are below' : 'nothing waits', waits ? 'waits' : ''],
    ['Backends answering', count(good), bad ? `${count(bad)} not answering` : 'of those that are probed', bad ? 'bad' : ''],
  ];
  keyed(at('glance'), tiles, ([name]) => name,
    ([name]) => make('div', {}, make('dt', { textContent: name }), make('dd', {}, make('b'), make('span'))),
    (tile, [, number, text, tone]) => {
      tile.className = tone ?? '';
      say(tile.querySelector('b'), number);
      say(tile.querySelector('span'), text);
    });
}

function restAndDrain(resting, draining) {
  const parts = [[resting, 'resting'], [draining, 'draining']].filter(([number]) => number);
  return parts.map(([number, word]) => `${count(number)} ${word}`).join(', ') || 'none resting or draining';
}

const plural = (number, word) => `${count(number)} ${word}${number === 1 ? '' : 's'}`;

function drawPanels() {
  for (const panel of panels.values()) {
    const note = at(`panel-${panel.name}`);
    if (!note) continue;
    const lines = [];
    if (panel.missing.length) {
      const state = panel.listed ? 'What is shown here does not move' : 'This part is empty';
      lines.push(`${state}: the kubeconfig lacks the right to ${panel.missing.join(' and to ')}. It comes by itself when the right is granted.`);
      if (panel.hint) lines.push(`${panel.hint[0].toUpperCase()}${panel.hint.slice(1)}.`);
    } else if (panel.error) {
      lines.push(`${panel.listed ? 'What is shown here may be old' : 'This part is empty'}: ${panel.error}`);
    } else if (!panel.listed) {
      lines.push('Waiting for the list …');
    }
    for (const [name, why] of panel.unreadable) lines.push(`${name} cannot be read: ${why}`);
    if (panel.moreUnreadable) lines.push(`and ${count(panel.moreUnreadable)} more that cannot be read`);
    if (!lines.length && panel.name === 'pools' && !pools.size) lines.push('There is no pool.');
    if (!lines.length && panel.name === 'balancers' && !balancers.size) lines.push('There is no load balancer.');
    keyed(note, lines, (line) => line, () => make('p'), (element, line) => say(element, line));
    toggle(note, lines.length > 0);
  }
}

function drawPools(touched) {
  const names = [...pools.keys()].sort();
  const now = Date.now();
  const stateOf = (holder) => balancers.get(holder)?.state;
  keyed(at('pool-cards'), names, (name) => name, () => makePool(showBalancer), (card, name) => {
    if (touched && !touched.has(name)) return;
    const own = [...(blocks.get(name)?.values() ?? [])].sort((a, b) => a.range - b.range);
    card.update({ pool: pools.get(name), blocks: own, stateOf, used: (quota) => used(pools.get(name), own, quota, now), now });
  });
  wakeAtEndOfRest(now);
}

/**
 * Addresses that count against a quota, held and resting; nothing where that cannot be seen. A guest cluster counts in each
 * namespace apart, and the greatest number is shown.
 */
function used(pool, own, quota, now) {
  const holders = own.flatMap((block) => block.held.map(([, holder]) => holder));
  if (!quota.namespace && !holders.every((holder) => balancers.has(holder))) return undefined;
  holders.push(...pool.outside.map(([, holder]) => holder));
  for (const block of own) {
    holders.push(...block.resting.filter(([, end]) => Date.parse(end) > now).map(([, , last]) => last));
  }
  const numbers = new Map();
  for (const holder of holders) {
    const namespace = holder.split('/')[0];
    if (quota.namespace ? namespace !== quota.namespace : balancers.get(holder)?.cluster !== quota.guestCluster) continue;
    numbers.set(namespace, (numbers.get(namespace) ?? 0) + 1);
  }
  return Math.max(0, ...numbers.values());
}

let rest = 0;

/** A rest ends without a change of the pool: its map is drawn again then. */
function wakeAtEndOfRest(now) {
  let next = Infinity;
  for (const [pool, all] of blocks) {
    for (const block of all.values()) {
      for (const [, end] of block.resting) {
        const time = Date.parse(end);
        if (time > now) next = Math.min(next, time);
        else if (time > now - 2000) touchPool(pool);
      }
    }
  }
  clearTimeout(rest);
  if (next < Infinity) {
    rest = setTimeout(() => {
      changed.pools = undefined;
      draw();
    }, Math.min(next - now + 50, 3_600_000));
  }
}

const byName = (a, b) => keyOf(a).localeCompare(keyOf(b));
const byAge = (a, b) => (a.since || '~').localeCompare(b.since || '~') || byName(a, b);

/** So many of them, sorted: the first of each namespace, then the second of each, so that no tenant fills the list alone. */
function inTurn(all, most, order) {
  const namespaces = new Map();
  for (const balancer of all.sort(order)) {
    if (!namespaces.has(balancer.namespace)) namespaces.set(balancer.namespace, []);
    namespaces.get(balancer.namespace).push(balancer);
  }
  const taken = [];
  for (let turn = 0; taken.length < Math.min(most, all.length); turn += 1) {
    for (const own of namespaces.values()) {
      if (turn < own.length && taken.length < most) taken.push(own[turn]);
    }
  }
  return taken.sort(order);
}

function drawWaits() {
  const waiting = [...balancers.values()].filter((balancer) => balancer.state === 'waits');
  toggle(at('waiting'), waiting.length > 0);
  keyed(at('waits'), inTurn(waiting, WAITS, byAge), keyOf,
    (balancer) => {
      const link = make('a', { href: '#balancers', textContent: keyOf(balancer) });
      link.addEventListener('click', (event) => {
        event.preventDefault();
        showBalancer(keyOf(balancer));
      });
      return make('li', {}, make('div', {}, link, make('code'), make('time')), make('span', { className: 'quiet' }), make('p'));
    },
    (item, balancer) => {
      const [head, service, text] = item.children;
      const [, reason, time] = head.children;
      say(reason, balancer.reason);
      toggle(reason, balancer.reason !== '');
      time.dataset.since = balancer.since;
      say(time, ago(balancer.since));
      say(service, serviceOf(balancer));
      toggle(service, balancer.service !== '');
      say(text, balancer.message);
    });
  toggle(at('waits-more'), waiting.length > WAITS);
  say(at('waits-more'), `and ${count(waiting.length - WAITS)} more, in the table below`);
}

function ago(text) {
  const seconds = Math.round((Date.now() - Date.parse(text)) / 1000);
  if (Number.isNaN(seconds)) return '';
  for (const [size, unit] of [[86400, 'd'], [3600, 'h'], [60, 'min']]) {
    if (seconds >= size) return `for ${Math.floor(seconds / size)} ${unit}`;
  }
  return `for ${Math.max(0, seconds)} s`;
}

const serviceOf = ({ service, cluster }) => (service ? `Service ${service}${cluster ? ` of ${cluster}` : ''}` : '');

const WORDS = { ready: 'ready', waits: 'waits', leaves: 'is being deleted' };
const VERDICTS = { good: 'answers', bad: 'does not answer', unknown: 'not probed' };

function isTroubled(balancer) {
  return balancer.state !== 'ready' || balancer.bad > 0;
}

function drawBalancers() {
  const words = at('search').value.toLowerCase().split(/\s+/).filter(Boolean);
  const troubled = at('only-troubled').checked;
  const matches = (balancer) => {
    const text = [keyOf(balancer), balancer.service, balancer.cluster, ...balancer.addresses, ...balancer.pools].join(' ').toLowerCase();
    return words.every((word) => text.includes(word)) && (!troubled || isTroubled(balancer));
  };
  const found = [...balancers.values()].filter(matches);
  keyed(at('rows'), inTurn(found, ROWS, byName), keyOf, makeBalancer, (row, balancer) => {
    if (row.drawn === balancer) return;
    row.drawn = balancer;
    updateBalancer(row, balancer);
  });
  say(at('shown'), `${plural(found.length, 'load balancer')} of ${count(balancers.size)}`);
  const left = found.length - ROWS;
  say(at('rows-more'), left > 0 ? `and ${count(left)} more: narrow the search` : found.length < balancers.size ? `${count(found.length)} of ${count(balancers.size)}` : '');
}

function makeBalancer(balancer) {
  const cell = (label, ...children) => make('td', { role: 'cell', 'data-label': label }, ...children);
  const name = make('th', { scope: 'row', role: 'rowheader' }, make('span', { className: 'name', textContent: keyOf(balancer) }), make('span', { className: 'quiet' }), make('span', { className: 'why' }));
  const summary = make('summary', {}, make('span', { className: 'dots', ariaHidden: 'true' }), make('span'));
  const details = make('details', {}, summary, make('p', { className: 'quiet' }), make('ul', { className: 'backends' }));
  return make('tr', { role: 'row', tabIndex: -1 },
    make('td', { role: 'cell' }, make('span', { className: 'sign' })),
    name,
    ...['Address', 'Ports', 'Pool'].map((label) => cell(label)),
    cell('Backends', make('span', { className: 'quiet' }), details));
}

function updateBalancer(row, balancer) {
  const [state, name, address, ports, pool, backends] = row.children;
  const sign = state.firstChild;
  sign.className = `sign ${balancer.state}`;
  say(sign, WORDS[balancer.state]);
  const [, about, why] = name.children;
  say(about, serviceOf(balancer));
  toggle(about, balancer.service !== '');
  say(why, balancer.message);
  toggle(why, balancer.message !== '');
  say(address, balancer.addresses.join(', ') || '–');
  say(ports, [...balancer.ports, ...(balancer.morePorts ? [`and ${balancer.morePorts} more`] : [])].join(', ') || '–');
  say(pool, balancer.dhcp ? 'DHCP' : balancer.pools.join(', ') || '–');
  drawBackends(backends, balancer);
}

function drawBackends(cell, balancer) {
  const [plain, details] = cell.children;
  const [summary, check, list] = details.children;
  const [dots, text] = summary.children;
  const all = balancer.backends.length + balancer.moreBackends;
  toggle(details, all > 0);
  toggle(plain, all === 0);
  say(plain, balancer.workload === 'cluster' ? 'in the guest cluster' : 'none');
  if (!all) return;
  const signs = balancer.backends.slice(0, 12);
  while (dots.childElementCount > signs.length) dots.lastChild.remove();
  while (dots.childElementCount < signs.length) dots.append(make('i'));
  signs.forEach((backend, index) => {
    dots.children[index].className = backend.verdict;
  });
  say(text, balancer.check ? `${balancer.good} of ${all} answer` : `${all}, not probed`);
  say(check, balancer.check ? `probed by ${balancer.check}` : 'no health check');
  keyed(list, balancer.backends, (backend) => `${backend.name}\n${backend.address}`,
    () => make('li', {}, make('span', { className: 'verdict' }), make('span'), make('span', { className: 'quiet' })),
    (item, backend) => {
      const [verdict, who, error] = item.children;
      verdict.className = `verdict ${backend.verdict}`;
      say(verdict, backend.verdict === 'unknown' && balancer.check ? 'no verdict yet' : VERDICTS[backend.verdict]);
      say(who, [backend.name, backend.address].filter(Boolean).join(' '));
      say(error, backend.error);
    });
}

/** Brings the row of a load balancer before the eye. */
function showBalancer(key) {
  if (!balancers.has(key)) return;
  at('search').value = key;
  at('only-troubled').checked = false;
  drawBalancers();
  const row = at('rows').known?.get(key);
  if (!row) return;
  row.scrollIntoView({ block: 'center' });
  row.focus({ preventScroll: true });
}

// ---- start ---------------------------------------------------------------------------------------------------------

at('filter').addEventListener('submit', (event) => event.preventDefault());
at('search').addEventListener('input', drawBalancers);
at('only-troubled').addEventListener('change', drawBalancers);
setInterval(() => {
  for (const time of document.querySelectorAll('time[data-since]')) say(time, ago(time.dataset.since));
}, 1000);
connect();
