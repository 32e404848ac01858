'use strict';
const get = id => document.getElementById(id);
const graph = get('graph'), drawing = get('drawing'), search = get('search');
const nodes = [...drawing.querySelectorAll('.node')], paths = [...drawing.querySelectorAll('path')];
const rows = [...document.querySelectorAll('tbody tr')];
const headings = [...document.querySelectorAll('th')].map(h => h.textContent);
const width = +drawing.getAttribute('width'), height = +drawing.getAttribute('height');
let scale = 1, hits = [], next = 0;

function zoom(wanted, x = graph.clientWidth / 2, y = graph.clientHeight / 2) {
  const before = drawing.getBoundingClientRect(), box = graph.getBoundingClientRect();
  const held = [(box.left + x - before.left) / scale, (box.top + y - before.top) / scale];
  scale = Math.min(4, Math.max(0.02, wanted));
  drawing.setAttribute('width', width * scale);
  drawing.setAttribute('height', height * scale);
  const after = drawing.getBoundingClientRect();
  graph.scrollLeft += after.left + held[0] * scale - box.left - x;
  graph.scrollTop += after.top + held[1] * scale - box.top - y;
}

function select(index, show) {
  for (const marked of document.querySelectorAll('.on')) marked.classList.remove('on');
  nodes[index].classList.add('on');
  rows[index].classList.add('on');
  for (const p of paths)
    p.classList.toggle('on', p.dataset.source === String(index) || p.dataset.target === String(index));
  const list = document.createElement('dl');
  [...rows[index].cells].forEach((cell, i) => {
    if (!cell.textContent) return;
    list.appendChild(document.createElement('dt')).textContent = headings[i];
    list.appendChild(document.createElement('dd')).textContent = cell.innerText;
  });
  get('details').replaceChildren(list);
  if (show) {
    const box = graph.getBoundingClientRect(), at = nodes[index].getBoundingClientRect();
    graph.scrollLeft += at.left + at.width / 2 - box.left - box.width / 2;
    graph.scrollTop += at.top + at.height / 2 - box.top - box.height / 2;
  }
}

function find() {
  const wanted = search.value.trim().toLowerCase();
  const fits = row => [0, 1].some(i => row.cells[i].textContent.toLowerCase().includes(wanted));
  hits = wanted ? rows.flatMap((row, i) => fits(row) ? [i] : []) : [];
  next = 0;
  const found = new Set(hits);
  nodes.forEach((node, i) => node.classList.toggle('hit', found.has(i)));
  rows.forEach((row, i) => row.classList.toggle('hit', found.has(i)));
  drawing.classList.toggle('searching', wanted !== '');
  get('found').textContent = wanted ? `${hits.length} of ${rows.length}` : '';
}

nodes.forEach((node, i) => {
  node.addEventListener('click', () => select(i, false));
  node.addEventListener('keydown', event => {
    if (event.key !== 'Enter' && event.key !== ' ') return;
    event.preventDefault();
    select(i, false);
  });
});
rows.forEach((row, i) => row.addEventListener('click', () => {
  select(i, true);
  graph.scrollIntoView({ block: 'nearest' });
}));
search.addEventListener('input', find);
search.addEventListener('keydown', event => {
  if (event.key === 'Enter' && hits.length) select(hits[next++ % hits.length], true);
});
get('in').addEventListener('click', () => zoom(scale * 1.25));
get('out').addEventListener('click', () => zoom(scale / 1.25));
get('whole').addEventListener('click', () => zoom((graph.clientWidth - 2) / width));
get('full').addEventListener('click', () => zoom(1));
get('heat')?.addEventListener('click', event => {
  const on = drawing.classList.toggle('timed');
  event.currentTarget.setAttribute('aria-pressed', on);
});
graph.addEventListener('wheel', event => {
  if (!event.ctrlKey) return;
  event.preventDefault();
  const box = graph.getBoundingClientRect();
  zoom(scale * Math.exp(-event.deltaY / 400), event.clientX - box.left, event.clientY - box.top);
}, { passive: false });
graph.scrollLeft = (width - graph.clientWidth) / 2;
