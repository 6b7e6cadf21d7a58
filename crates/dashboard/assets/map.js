// Pools as maps of addresses. A range of IPv4 is a grid of cells: one for each address, or, in a large range, one for as
// many as it takes. A range of IPv6 has no map: what is held in it is in the table below.
'use strict';

/** Cells of a map at most. */
const CELLS = 256;
/** Rows of a table of addresses at most. */
const ADDRESSES = 500;

/** An element with these properties and children. Text is text: nothing here reads markup. */
function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name in element) element[name] = value;
    else element.setAttribute(name, value);
  }
  element.append(...children);
  return element;
}

/** Sets text where it is another one, so that nothing is drawn or spoken twice. */
function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function toggle(element, shown) {
  if (element.hidden === shown) element.hidden = !shown;
}

/** Makes the children of `parent` those of `items`, in their order; an element stays with its key. */
function keyed(parent, items, key, create, update) {
  parent.known ??= new Map();
  const keys = new Set(items.map(key));
  for (const [name, element] of parent.known) {
    if (!keys.has(name)) {
      element.remove();
      parent.known.delete(name);
    }
  }
  let place = parent.firstChild;
  for (const item of items) {
    const name = key(item);
    let element = parent.known.get(name);
    if (!element) {
      element = create(item);
      parent.known.set(name, element);
    }
    if (element === place) place = place.nextSibling;
    else parent.insertBefore(element, place);
    update(element, item);
  }
}

/** A count, which may be text where JavaScript would round it. */
function count(number) {
  const exact = BigInt(number);
  if (exact < 10n ** 9n) return exact.toLocaleString('en');
  const [digits, power] = Number(exact).toExponential(1).split('e+');
  return `${digits} × 10${[...power].map((digit) => '⁰¹²³⁴⁵⁶⁷⁸⁹'[digit]).join('')}`;
}

/** Total and free addresses of a pool: those of IPv4, and those of IPv6, beside which the former would be nothing. */
function families(pool) {
  const six = { total: 0n, free: 0n };
  for (const range of pool.ranges) {
    if (!range.start.includes(':')) continue;
    six.total += BigInt(range.total);
    if (!range.drain) six.free += BigInt(range.total) - BigInt(range.held + range.resting);
  }
  return { four: { total: BigInt(pool.total) - six.total, free: BigInt(pool.free) - six.free }, six };
}

/** The number of an IPv4 address; nothing for any other text. */
function numberOf(address) {
  const parts = address.split('.');
  if (parts.length !== 4) return undefined;
  return parts.reduce((number, part) => number * 256 + Number(part), 0);
}

function addressOf(number) {
  return [24, 16, 8, 0].map((bits) => Math.floor(number / 2 ** bits) % 256).join('.');
}

/** What is known of the addresses of a range: address to `{kind, who}`. */
function usesOf(blocks, now) {
  const uses = new Map();
  for (const block of blocks) {
    for (const [address, end] of block.resting) {
      if (Date.parse(end) > now) uses.set(address, { kind: 'resting', who: end });
    }
    for (const [address, holder] of block.held) uses.set(address, { kind: 'held', who: holder });
  }
  return uses;
}

/** The cells of a range: `{first, last, kind, share, text, holder}`. `stateOf` says how a holder is. */
function cellsOf(range, uses, stateOf) {
  const [first, last] = [numberOf(range.start), numberOf(range.end)];
  if (first === undefined) return [];
  let step = 1;
  while ((last - first + 1) / step > CELLS) step *= 2;
  const numbers = new Map();
  for (const [address, use] of uses) {
    const cell = Math.floor((numberOf(address) - first) / step);
    if (!numbers.has(cell)) numbers.set(cell, []);
    numbers.get(cell).push([address, use]);
  }
  const cells = [];
  for (let cell = 0; first + cell * step <= last; cell += 1) {
    const from = first + cell * step;
    const to = Math.min(from + step - 1, last);
    const there = numbers.get(cell) ?? [];
    cells.push(step === 1 ? single(range, addressOf(from), there[0]?.[1], stateOf) : several(range, from, to, there, stateOf));
  }
  return cells;
}

function single(range, address, use, stateOf) {
  if (use?.kind === 'held') {
    const state = stateOf(use.who);
    const word = state === 'waits' ? ', which is not ready' : '';
    const drain = range.drain ? '; the range drains' : '';
    const kind = `held${state === 'waits' ? ' waits' : ''}${range.drain ? ' drains' : ''}`;
    return { kind, text: `${address} is held by ${use.who}${word}${drain}`, holder: use.who };
  }
  if (use) return { kind: 'resting', text: `${address} rests until ${timeOf(use.who)}` };
  if (address === range.gateway) return { kind: 'gateway', text: `${address} is the gateway` };
  if (range.drain) return { kind: 'draining', text: `${address} is not given out: the range drains` };
  return { kind: 'free', text: `${address} is free` };
}

function several(range, from, to, there, stateOf) {
  const of = to - from + 1;
  const held = there.filter(([, use]) => use.kind === 'held');
  const resting = there.length - held.length;
  const waits = held.some(([, use]) => stateOf(use.who) === 'waits');
  const parts = [`${held.length} of ${of} held`];
  if (resting) parts.push(`${resting} resting`);
  if (waits) parts.push('not all of them ready');
  if (range.drain) parts.push('the range drains');
  const kind = range.drain ? 'draining' : 'free';
  return {
    kind: `many ${kind}${waits ? ' waits' : ''}${resting ? ' rests' : ''}`,
    share: held.length / of,
    text: `${addressOf(from)} to ${addressOf(to)}: ${parts.join(', ')}`,
  };
}

function timeOf(text) {
  const time = new Date(text);
  return Number.isNaN(time.getTime()) ? text : time.toLocaleTimeString('en-GB');
}

/** A map, with a line that says what its chosen cell is: by pointer, or by arrow keys. */
function makeMap(onChoose) {
  const grid = make('div', { className: 'map', tabIndex: 0, role: 'application' });
  const line = make('output', { className: 'line' });
  const cells = [];
  let chosen = -1;
  const choose = (index) => {
    if (chosen === index || !cells[index]) return;
    grid.children[chosen]?.classList.remove('chosen');
    chosen = index;
    grid.children[index].classList.add('chosen');
    say(line, cells[index].text);
  };
  const leave = () => {
    grid.children[chosen]?.classList.remove('chosen');
    chosen = -1;
    say(line, '');
  };
  const columns = () => getComputedStyle(grid).gridTemplateColumns.split(' ').length;
  const steps = {
    ArrowLeft: () => chosen - 1,
    ArrowRight: () => chosen + 1,
    ArrowUp: () => chosen - columns(),
    ArrowDown: () => chosen + columns(),
    Home: () => 0,
    End: () => cells.length - 1,
  };
  grid.addEventListener('keydown', (event) => {
    if (event.key === 'Enter' && cells[chosen]?.holder) onChoose(cells[chosen].holder);
    const step = steps[event.key];
    if (!step) return;
    event.preventDefault();
    choose(Math.max(0, Math.min(cells.length - 1, step())));
  });
  grid.addEventListener('focus', () => chosen < 0 && grid.matches(':focus-visible') && choose(0));
  grid.addEventListener('blur', leave);
  grid.addEventListener('pointerover', (event) => {
    if (event.target !== grid) choose(Array.prototype.indexOf.call(grid.children, event.target));
  });
  grid.addEventListener('pointerleave', () => document.activeElement !== grid && leave());
  grid.addEventListener('click', () => cells[chosen]?.holder && onChoose(cells[chosen].holder));
  const update = (range, next) => {
    grid.setAttribute('aria-label', `${range.start} to ${range.end}: ${range.held} held, ${range.resting} resting, of ${count(range.total)}. Arrow keys move from cell to cell.`);
    cells.splice(0, cells.length, ...next);
    while (grid.childElementCount > cells.length) grid.lastChild.remove();
    while (grid.childElementCount < cells.length) grid.append(make('i'));
    cells.forEach((cell, index) => {
      const element = grid.children[index];
      const name = `cell ${cell.kind}${index === chosen ? ' chosen' : ''}`;
      if (element.className !== name) element.className = name;
      const share = cell.share === undefined ? '' : String(Math.ceil(cell.share * 8) / 8);
      if (element.style.getPropertyValue('--share') !== share) element.style.setProperty('--share', share);
    });
    if (chosen >= 0) say(line, cells[chosen]?.text ?? '');
  };
  return { grid, line, update };
}

function makeRange(onChoose) {
  const title = make('h4');
  const drain = make('span', { className: 'tag', textContent: 'draining', hidden: true });
  const map = makeMap(onChoose);
  const element = make('div', { className: 'range' }, make('div', { className: 'range-head' }, title, drain), map.grid, map.line);
  element.update = ({ range, uses, stateOf }) => {
    const cells = cellsOf(range, uses, stateOf);
    say(title, range.start === range.end ? range.start : `${range.start} – ${range.end}`);
    toggle(drain, range.drain);
    toggle(map.grid, cells.length > 0);
    toggle(map.line, cells.length > 0);
    map.update(range, cells);
  };
  return element;
}

/** A pool's card. */
function makePool(onChoose) {
  const name = make('h3');
  const sign = make('span', { className: 'sign' });
  const about = make('p', { className: 'quiet' });
  const trouble = make('p', { className: 'trouble', hidden: true });
  const counts = make('p', { className: 'counts' });
  const meter = make('div', { className: 'meter', ariaHidden: 'true' }, ...['held', 'resting', 'draining'].map((kind) => make('i', { className: kind })));
  const quotas = make('ul', { className: 'quotas' });
  const ranges = make('div');
  const more = make('p', { className: 'quiet', hidden: true });
  const summary = make('summary');
  const body = make('tbody');
  const table = make('table', { className: 'addresses' }, make('thead', {}, make('tr', {}, ...['Address', 'State', 'Load balancer'].map((text) => make('th', { scope: 'col', textContent: text })))), body);
  const rest = make('p', { className: 'quiet', hidden: true });
  const details = make('details', {}, summary, table, rest);
  const card = make('article', { className: 'pool' }, make('div', { className: 'pool-head' }, name, sign), about, trouble, counts, meter, quotas, ranges, more, details);
  let drawn;
  const drawTable = () => {
    if (!details.open || !drawn) return;
    const shown = drawn.entries.slice(0, ADDRESSES);
    keyed(body, shown, (entry) => entry.address,
      () => make('tr', {}, make('th', { scope: 'row' }), make('td'), make('td')),
      (row, entry) => [entry.address, entry.state, entry.who].forEach((text, index) => say(row.children[index], text)));
    const left = drawn.held + drawn.resting - shown.length;
    toggle(rest, left > 0);
    say(rest, `and ${count(left)} more`);
  };
  details.addEventListener('toggle', drawTable);
  card.update = ({ pool, blocks, stateOf, used, now }) => {
    say(name, pool.name);
    const well = pool.leaving ? 'leaves' : { true: 'ready', false: 'waits', unknown: 'unknown' }[pool.ready];
    sign.className = `sign ${well}`;
    say(sign, { ready: 'ready', waits: 'not ready', leaves: 'is being deleted', unknown: 'not looked at yet' }[well]);
    say(about, [pool.description, audience(pool), pool.priority ? `priority ${pool.priority}` : ''].filter(Boolean).join(' · '));
    toggle(trouble, pool.message !== '');
    say(trouble, pool.message);
    const { four, six } = families(pool);
    const shownTotal = four.total ? four : six;
    const numbers = [[shownTotal.free, 'free'], [pool.held, 'held'], [pool.resting, 'resting'], [pool.draining, 'draining']];
    const named = numbers.filter(([number, word]) => BigInt(number) || word === 'free' || word === 'held');
    const both = four.total && six.total ? `, and ${count(six.free)} free of IPv6` : '';
    say(counts, `${named.map(([number, word]) => `${count(number)} ${word}`).join(', ')} of ${count(shownTotal.total)}${both}`);
    const total = Math.max(1, Number(shownTotal.total));
    ['held', 'resting', 'draining'].forEach((kind, index) => {
      const share = Math.min(1, Number(pool[kind]) / total);
      meter.children[index].style.setProperty('--share', share > 0 ? String(Math.max(share, 0.004)) : '0');
    });
    keyed(quotas, pool.quotas, (quota) => `${quota.guestCluster}\n${quota.namespace}`, () => make('li'), (item, quota) => {
      const who = quota.guestCluster ? `cluster ${quota.guestCluster}, most in one namespace` : `namespace ${quota.namespace}`;
      const has = used(quota);
      say(item, `${who}: ${has === undefined ? '?' : has} of ${quota.max}`);
      item.className = has >= quota.max ? 'full' : '';
    });
    const byRange = pool.ranges.map(() => []);
    for (const block of blocks) byRange[block.range]?.push(block);
    const entries = [];
    const shown = pool.ranges.map((range, index) => {
      const uses = usesOf(byRange[index], now);
      for (const [address, use] of uses) {
        entries.push({ address, state: use.kind === 'held' ? 'held' : `rests until ${timeOf(use.who)}`, who: use.kind === 'held' ? use.who : '' });
      }
      return { range, index, uses, stateOf };
    });
    for (const [address, who] of pool.outside) entries.push({ address, state: 'held, outside of the ranges', who });
    keyed(ranges, shown, ({ index }) => index, () => makeRange(onChoose), (element, item) => element.update(item));
    toggle(more, pool.moreRanges > 0);
    say(more, `and ${count(pool.moreRanges)} more ranges`);
    toggle(details, pool.held + pool.resting > 0);
    say(summary, `Addresses in use${pool.outside.length ? `, ${pool.outside.length} of them outside of the ranges` : ''}`);
    drawn = { entries, held: pool.held, resting: pool.resting };
    drawTable();
  };
  return card;
}

/** Whom a pool serves. */
function audience(pool) {
  const network = pool.network ? `network ${pool.network}` : '';
  const any = (text, word) => (text === '*' || text === '' ? '' : `${word} ${text}`);
  const scopes = pool.scopes.map(([project, namespace, cluster]) => [any(namespace, 'namespace'), any(cluster, 'cluster'), any(project, 'project')].filter(Boolean).join(', ') || 'everybody');
  const who = pool.global ? 'for everybody' : scopes.length ? `for ${scopes.slice(0, 3).join('; ')}${scopes.length > 3 ? ` and ${scopes.length - 3} more` : ''}` : '';
  return [who, network].filter(Boolean).join(', ');
}
