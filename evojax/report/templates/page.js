'use strict';
// The page reads without this. It filters changes, opens what a link names, and
// loads the page of a run that goes on again.
const versions = document.querySelectorAll('tr[data-kind], details[data-kind]');
const filters = document.querySelectorAll('button[data-filter]');
for (const button of filters) {
  button.addEventListener('click', () => {
    const kind = button.dataset.filter;
    for (const each of versions) {
      each.hidden = kind !== '' && each.dataset.kind !== kind;
    }
    for (const other of filters) {
      other.setAttribute('aria-pressed', String(other === button));
    }
  });
}
for (const button of document.querySelectorAll('button[data-open]')) {
  button.addEventListener('click', () => {
    const open = button.dataset.open === 'true';
    for (const each of document.querySelectorAll('details.version')) {
      each.open = open;
    }
  });
}
for (const tools of document.querySelectorAll('.filters, .tools')) {
  tools.hidden = false;
}
function show() {
  const target = document.getElementById(location.hash.slice(1));
  if (target instanceof HTMLDetailsElement) {
    target.hidden = false;
    target.open = true;
    target.scrollIntoView();
  }
}
addEventListener('hashchange', show);
show();

// What is open stays open when the page loads again: places count from the
// nearest id, since rows are added.
const page = document.body.dataset;
const all = [...document.querySelectorAll('details')];
const place = (one) => {
  const root = one.parentElement.closest('[id]') || document.body;
  return `${one.id || root.id}/${[...root.querySelectorAll('details')].indexOf(one)}`;
};
const store = `evojax ${location.pathname}`;
function reload() {
  const state = { y: scrollY, open: all.filter((d) => d.open).map(place) };
  sessionStorage.setItem(store, JSON.stringify(state));
  location.reload();
}
function restore() {
  const state = JSON.parse(sessionStorage.getItem(store) || 'null');
  sessionStorage.removeItem(store);
  if (state) {
    for (const one of all) {
      one.open = one.open || state.open.includes(place(one));
    }
    scrollTo(0, state.y);
  }
}
restore();
if (page.state === 'running') {
  const silent = () => Date.now() / 1000 - page.written;
  const wait = 1000 * page.next;
  // A run that was killed can no longer say so.
  if (silent() > 60 + 10 * page.next) {
    const note = document.getElementById('silent');
    note.textContent = `Nothing new for ${Math.round(silent() / 60)} minutes: ` +
      'the run may have been killed; the same command continues it.';
    note.hidden = false;
  }
  setInterval(() => document.hidden || reload(), wait);
}
