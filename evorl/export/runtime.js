// Functions that generated code calls (evorl/export/javascript.py). Arrays are flat Float64Arrays without their shapes.
const map = (f, a) => a.map(f);
const zip = (f, a, b) => {
  if (a.length === b.length) return a.map((x, i) => f(x, b[i]));
  return a.length === 1 ? b.map(y => f(a[0], y)) : a.map(x => f(x, b[0]));
};
const wrap = (Kind, a) => Float64Array.from(Kind.from(a));  // integers beyond the range of their type, as in JAX
const at = (a, i) => a[a.length === 1 ? 0 : i];
const where = (c, a, b, size) => new Float64Array(size).map((_, i) => at(c, i) ? at(a, i) : at(b, i));
function* places(shape, strides, offset) {
  const size = shape.reduce((n, m) => n * m, 1), index = shape.map(() => 0);
  for (let k = 0; k < size; k++) {
    yield offset;
    for (let axis = shape.length - 1; axis >= 0; axis--) {
      offset += strides[axis];
      if (++index[axis] < shape[axis]) break;
      offset -= strides[axis] * shape[axis];
      index[axis] = 0;
    }
  }
}
const view = order => a => Float64Array.from(order, i => a[i]);
const put = (order, size, value) => a => {
  const out = new Float64Array(size).fill(value);
  order.forEach((place, i) => { out[place] = a[i]; });
  return out;
};
const order = (shape, strides, offset) => Int32Array.from(places(shape, strides, offset));
const concat = (inner, ...parts) => {
  const sum = (n, m) => n + m, out = new Float64Array(parts.map(part => part.length).reduce(sum)), outer = out.length / inner.reduce(sum);
  let place = 0;
  for (let i = 0; i < outer; i++)
    parts.forEach((part, k) => { out.set(part.subarray(i * inner[k], (i + 1) * inner[k]), place); place += inner[k]; });
  return out;
};
const matmul = (a, b, batch, rows, inner, columns) => {
  const out = new Float64Array(batch * rows * columns), step = b.length === inner * columns ? 0 : inner * columns;
  for (let n = 0; n < batch; n++)
    for (let i = 0; i < rows; i++)
      for (let k = 0; k < inner; k++) {
        const x = a[(n * rows + i) * inner + k];
        if (x !== 0) for (let j = 0; j < columns; j++) out[(n * rows + i) * columns + j] += x * b[n * step + k * columns + j];
      }
  return out;
};
const reduce = (f, a, size) => Float64Array.from({length: a.length / size}, (_, i) => a.subarray(i * size, (i + 1) * size).reduce(f));
const best = (better, a, size) => Float64Array.from({length: a.length / size}, (_, i) => {
  let found = 0;
  for (let k = 1; k < size; k++) if (better(a[i * size + k], a[i * size + found])) found = k;
  return found;
});
const halfToEven = x => { const y = Math.round(x); return Math.abs(x % 1) === 0.5 && y % 2 !== 0 ? y - 1 : y; };
const erf = x => {
  const s = Math.abs(x);
  if (s > 6) return Math.sign(x);
  let term = s, sum = s;
  for (let n = 1; n < 200 && Math.abs(term) > 1e-17 * Math.abs(sum); n++) { term *= 2 * s * s / (2 * n + 1); sum += term; }
  return Math.sign(x) * 2 / Math.sqrt(Math.PI) * Math.exp(-s * s) * sum;
};
const numbers = (text, Kind) => Float64Array.from(new Kind(Uint8Array.from(atob(text), c => c.charCodeAt(0)).buffer));
