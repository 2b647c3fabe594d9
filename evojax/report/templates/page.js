'use strict';
// The page reads without this; it filters versions and opens what a link names.
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
