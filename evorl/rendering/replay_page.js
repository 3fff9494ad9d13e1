"use strict";
// Draws the scenes of a replay page: shapes consist of flat faces, painted back to front.
const data = JSON.parse(document.getElementById("data").textContent);
const FOV = 45 * Math.PI / 180, NEAR = 0.05;
const view = {azimuth: 90, elevation: -20, distance: data.distance * 1.15};
const numBodies = Math.max(-1, ...data.shapes.map(s => s.body)) + 1;

const turn = (q, v) => { // rotates a vector by a quaternion, w first
  const [w, x, y, z] = q, a = y * v[2] - z * v[1] + w * v[0], b = z * v[0] - x * v[2] + w * v[1], c = x * v[1] - y * v[0] + w * v[2];
  return [v[0] + 2 * (y * c - z * b), v[1] + 2 * (z * a - x * c), v[2] + 2 * (x * b - y * a)];
};
const sum = (a, b) => [a[0] + b[0], a[1] + b[1], a[2] + b[2]];
const less = (a, b) => [a[0] - b[0], a[1] - b[1], a[2] - b[2]];
const dot = (a, b) => a[0] * b[0] + a[1] * b[1] + a[2] * b[2];
const cross = (a, b) => [a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]];

// Surface of revolution of a profile of [radius, height] around the z axis: corners, and faces as lists of indices.
function lathe(profile, sides) {
  const corners = [], faces = [];
  profile.forEach(([r, z]) => {
    for (let i = 0; i < sides; i++) corners.push([r * Math.cos(2 * Math.PI * i / sides), r * Math.sin(2 * Math.PI * i / sides), z]);
  });
  for (let k = 0; k + 1 < profile.length; k++)
    for (let i = 0; i < sides; i++) {
      const j = (i + 1) % sides, at = k * sides;
      faces.push([at + i, at + j, at + sides + j, at + sides + i]);
    }
  return {corners, faces};
}
function arc(r, from, to, steps, shift) {
  const points = [];
  for (let i = 0; i <= steps; i++) {
    const a = from + (to - from) * i / steps;
    points.push([Math.max(r * Math.cos(a), 1e-4), r * Math.sin(a) + shift]);
  }
  return points;
}
function solid(kind, size) {
  const [a, b, c] = size, h = Math.PI / 2;
  if (kind === "box") {
    const corners = [];
    for (const x of [-a, a]) for (const y of [-b, b]) for (const z of [-c, c]) corners.push([x, y, z]);
    return {corners, faces: [[0, 1, 3, 2], [4, 6, 7, 5], [0, 4, 5, 1], [2, 3, 7, 6], [0, 2, 6, 4], [1, 5, 7, 3]]};
  }
  if (kind === "capsule") return lathe([...arc(a, -h, 0, 3, -c), ...arc(a, 0, h, 3, c)], 12);
  if (kind === "cylinder") return lathe([[1e-4, -c], [a, -c], [a, c], [1e-4, c]], 16);
  const ball = lathe(arc(1, -h, h, 8, 0), 12);
  ball.corners = ball.corners.map(p => [p[0] * a, p[1] * b, p[2] * c]);
  return ball;
}
const shapes = data.shapes.map(s => {
  if (s.kind === "plane") return s;
  const {corners, faces} = solid(s.kind, s.size);
  return {...s, corners: corners.map(p => sum(turn(s.quat, p), s.pos)), faces};
});

class Tile {
  constructor(scene) {
    this.scene = scene;
    const bytes = Uint8Array.from(atob(scene.poses), c => c.charCodeAt(0));
    const words = new DataView(bytes.buffer);
    this.numbers = Float32Array.from({length: bytes.length / 2}, (_, i) => words.getInt16(2 * i, true) / 32767);
    const figure = document.createElement("figure");
    this.caption = document.createElement("figcaption");
    this.canvas = document.createElement("canvas");
    figure.append(this.caption, this.canvas);
    document.getElementById("tiles").append(figure);
    this.steer();
  }
  pose(frame, body) {
    const at = (frame * numBodies + body) * 7, n = this.numbers, {center, reach} = this.scene;
    const q = [n[at + 3], n[at + 4], n[at + 5], n[at + 6]], length = Math.hypot(...q) || 1;
    return {pos: [0, 1, 2].map(i => n[at + i] * reach + center[i]), quat: q.map(x => x / length)};
  }
  steer() { // all scenes share one camera direction
    let from = null;
    this.canvas.onpointerdown = e => { from = [e.clientX, e.clientY]; this.canvas.setPointerCapture(e.pointerId); };
    this.canvas.onpointerup = () => { from = null; };
    this.canvas.onpointermove = e => {
      if (!from) return;
      view.azimuth -= (e.clientX - from[0]) / 2;
      view.elevation = Math.max(-89, Math.min(89, view.elevation - (e.clientY - from[1]) / 2));
      from = [e.clientX, e.clientY];
      drawAll();
    };
    this.canvas.onwheel = e => { e.preventDefault(); view.distance *= Math.exp(e.deltaY / 1000); drawAll(); };
  }
  draw(moment) {
    const {moments, returns, title, isWhole} = this.scene;
    let frame = 0;
    while (frame + 1 < moments.length && moments[frame + 1] <= moment) frame++;
    const isOver = isWhole && frame === moments.length - 1;
    this.caption.textContent = `${title}  step ${moments[frame]}${isOver ? " (end)" : ""}  return ${returns[frame]}`;
    this.caption.className = isOver ? "end" : "";
    const ratio = window.devicePixelRatio || 1, width = this.canvas.clientWidth, height = Math.round(width * 0.75);
    this.canvas.width = width * ratio;
    this.canvas.height = height * ratio;
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    const sky = pen.createLinearGradient(0, 0, 0, height);
    sky.addColorStop(0, "#c9d9ea");
    sky.addColorStop(1, "#f3f5f7");
    pen.fillStyle = sky;
    pen.fillRect(0, 0, width, height);
    const poses = Array.from({length: numBodies}, (_, body) => this.pose(frame, body));
    this.paint(pen, width, height, poses);
  }
  paint(pen, width, height, poses) {
    const az = view.azimuth * Math.PI / 180, el = view.elevation * Math.PI / 180;
    const ahead = [Math.cos(el) * Math.cos(az), Math.cos(el) * Math.sin(az), Math.sin(el)];
    const right = [Math.sin(az), -Math.cos(az), 0], up = cross(right, ahead);
    const target = poses.length ? poses[0].pos : [0, 0, 0], eye = less(target, ahead.map(x => x * view.distance));
    const zoom = height / 2 / Math.tan(FOV / 2);
    const seen = p => { const d = less(p, eye); return [dot(d, right), dot(d, up), dot(d, ahead)]; };
    const flat = p => [width / 2 + zoom * p[0] / p[2], height / 2 - zoom * p[1] / p[2]];
    const fill = (points, color) => {
      pen.fillStyle = color;
      pen.strokeStyle = color;
      pen.lineWidth = 0.6;
      pen.beginPath();
      points.forEach((p, i) => i ? pen.lineTo(...flat(p)) : pen.moveTo(...flat(p)));
      pen.closePath();
      pen.fill();
      pen.stroke();
    };
    for (const shape of shapes) if (shape.kind === "plane") ground(shape, poses, target, seen, fill);
    const light = [-0.35, 0.45, 0.82], faces = [];
    for (const shape of shapes) {
      if (shape.kind === "plane") continue;
      const body = poses[shape.body];
      const world = body ? shape.corners.map(p => sum(turn(body.quat, p), body.pos)) : shape.corners;
      const places = world.map(seen);
      for (const face of shape.faces) {
        const points = face.map(i => places[i]);
        if (points.some(p => p[2] < NEAR)) continue;
        // A triangular face has two equal corners; its diagonals still give its orientation.
        const normal = cross(less(world[face[2]], world[face[0]]), less(world[face[3]], world[face[1]]));
        const length = Math.hypot(...normal);
        if (!length || dot(normal, less(world[face[0]], eye)) >= 0) continue;
        const bright = 0.62 + 0.38 * dot(normal, light) / length;
        const depth = points.reduce((total, p) => total + p[2], 0) / points.length;
        faces.push({points, depth, color: shade(shape.color, bright)});
      }
    }
    faces.sort((a, b) => b.depth - a.depth);
    for (const face of faces) fill(face.points, face.color);
  }
}
function shade([r, g, b, a], bright) {
  const part = x => Math.round(255 * Math.min(1, x * bright + 0.04));
  return `rgba(${part(r)},${part(g)},${part(b)},${a})`;
}
// A chessboard in the plane of a shape, centered on the camera target.
function ground(shape, poses, target, seen, fill) {
  const body = poses[shape.body], quat = shape.quat;
  const place = p => { const q = sum(turn(quat, p), shape.pos); return body ? sum(turn(body.quat, q), body.pos) : q; };
  const back = turn([quat[0], -quat[1], -quat[2], -quat[3]], less(target, shape.pos));
  const cell = 2 ** Math.round(Math.log2(view.distance / 4)), reach = 9;
  const [x0, y0] = [Math.round(back[0] / cell), Math.round(back[1] / cell)];
  for (let i = -reach; i < reach; i++)
    for (let j = -reach; j < reach; j++) {
      const x = (x0 + i) * cell, y = (y0 + j) * cell, [w, h] = shape.size;
      if ((w && Math.abs(x + cell / 2) > w) || (h && Math.abs(y + cell / 2) > h)) continue;
      const corners = [[x, y, 0], [x + cell, y, 0], [x + cell, y + cell, 0], [x, y + cell, 0]].map(p => seen(place(p)));
      if (corners.some(p => p[2] < NEAR)) continue;
      const far = Math.hypot(i, j) / reach, gray = (x0 + i + y0 + j) % 2 ? 196 : 222;
      fill(corners, `rgba(${gray},${gray + 4},${gray + 8},${Math.max(0, Math.min(1, 1.6 - 1.7 * far))})`);
    }
}

const tiles = data.tiles.map(scene => new Tile(scene)), last = Math.max(...data.tiles.map(t => t.moments.at(-1)));
const perFrame = Math.max(1, ...data.tiles.map(t => t.moments.at(-1) / Math.max(1, t.moments.length - 1)));
const slider = document.getElementById("time"), button = document.getElementById("play"), speed = document.getElementById("speed");
let moment = 0, isPlaying = true, before = null;
slider.max = last;
slider.step = "any";
function drawAll() {
  slider.value = moment;
  tiles.forEach(tile => tile.draw(moment));
}
function setPlaying(value) {
  isPlaying = value;
  button.textContent = value ? "pause" : "play";
}
button.onclick = () => setPlaying(!isPlaying);
slider.oninput = () => { setPlaying(false); moment = Number(slider.value); drawAll(); };
window.onresize = drawAll;
document.onkeydown = e => {
  if (e.key === " " && e.target === document.body) { e.preventDefault(); setPlaying(!isPlaying); }
};
function tick(now) {
  if (isPlaying) {
    const seconds = before === null ? 0 : Math.min(0.2, (now - before) / 1000);
    moment += seconds * data.fps * perFrame * Number(speed.value);
    if (moment > last + data.fps * perFrame) moment = 0; // pause for a second at the end
    drawAll();
  }
  before = now;
  requestAnimationFrame(tick);
}
drawAll();
requestAnimationFrame(tick);
