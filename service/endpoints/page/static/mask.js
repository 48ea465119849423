// A picture and the hole that is painted over it: brush, erase, undo, zoom, by mouse, touch and keys.

import { element } from "./dom.js";

const COLOR = "rgb(224 122 31 / 75%)";
const MAX_UNDO_BYTES = 256e6;

export class MaskPainter {
  constructor() {
    this.picture = element("canvas");
    this.hole = element("canvas", { tabIndex: 0 });
    this.hole.setAttribute("aria-label", "Hole: paint with the mouse, or move with the arrow keys and paint with space");
    this.hole.getContext("2d", { willReadFrequently: true });
    this.ring = element("div", { className: "ring", hidden: true });
    this.stage = element("div", { className: "stage" }, this.picture, this.hole, this.ring);
    this.brush = 12;
    this.erases = false;
    this.zoom = 1;
    this.past = [];
    this.cursor = null;
    this.hole.addEventListener("pointerdown", (event) => this.begin(event));
    this.hole.addEventListener("pointermove", (event) => this.move(event));
    for (const end of ["pointerup", "pointercancel"]) {
      this.hole.addEventListener(end, () => (this.last = null));
    }
    this.hole.addEventListener("keydown", (event) => this.press(event));
  }

  /** Show a picture of any size, without a hole. */
  async load(blob) {
    const bitmap = await createImageBitmap(blob).catch(() => {
      throw new Error("The browser cannot read this picture. Save it as PNG, JPEG or WebP.");
    });
    for (const canvas of [this.picture, this.hole]) {
      canvas.width = bitmap.width;
      canvas.height = bitmap.height;
    }
    this.picture.getContext("2d").drawImage(bitmap, 0, 0);
    this.past = [];
    this.cursor = [bitmap.width / 2, bitmap.height / 2];
    const room = this.stage.clientWidth || 480;
    this.brush = Math.max(2, Math.round(Math.min(bitmap.width, bitmap.height) / 20));
    this.setZoom(Math.max(1 / 8, Math.min(8, Math.max(1, Math.floor(room / bitmap.width)) || 1, room / bitmap.width)));
  }

  setZoom(zoom) {
    this.zoom = zoom;
    for (const canvas of [this.picture, this.hole]) {
      canvas.style.width = `${canvas.width * zoom}px`;
      canvas.style.height = `${canvas.height * zoom}px`;
    }
  }

  remember() {
    const { width, height } = this.hole;
    this.past.push(this.hole.getContext("2d").getImageData(0, 0, width, height));
    const most = Math.max(1, Math.floor(MAX_UNDO_BYTES / (4 * width * height)));
    this.past.splice(0, Math.max(0, this.past.length - most));
  }

  undo() {
    const before = this.past.pop();
    if (before) {
      this.hole.getContext("2d").putImageData(before, 0, 0);
    }
  }

  clear() {
    this.remember();
    this.hole.getContext("2d").clearRect(0, 0, this.hole.width, this.hole.height);
  }

  place(event) {
    return [event.offsetX / this.zoom, event.offsetY / this.zoom];
  }

  begin(event) {
    if (event.button === 0) {
      this.ring.hidden = true;
      this.remember();
      this.hole.setPointerCapture(event.pointerId);
      this.last = this.place(event);
      this.stroke(this.last);
    }
  }

  move(event) {
    if (this.last) {
      this.stroke(this.place(event));
    }
  }

  stroke(to) {
    const context = this.hole.getContext("2d");
    const [x, y] = this.last ?? to;
    context.globalCompositeOperation = this.erases ? "destination-out" : "source-over";
    context.strokeStyle = this.erases ? "#000" : COLOR;
    context.lineWidth = this.brush;
    context.lineCap = context.lineJoin = "round";
    context.beginPath();
    context.moveTo(x, y);
    context.lineTo(to[0] + 0.01, to[1]);
    context.stroke();
    if (this.last) {
      this.last = to;
    }
    this.cursor = to;
  }

  press(event) {
    const by = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key];
    if (by && this.cursor) {
      event.preventDefault();
      const step = this.brush / 2;
      const [x, y] = this.cursor;
      this.cursor = [
        Math.min(this.hole.width, Math.max(0, x + by[0] * step)),
        Math.min(this.hole.height, Math.max(0, y + by[1] * step)),
      ];
      this.showCursor();
    } else if (event.key === " ") {
      event.preventDefault();
      this.remember();
      this.last = null;
      this.stroke(this.cursor);
    } else if (event.key === "z" && (event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      this.undo();
    }
  }

  /** Show where the keys paint. */
  showCursor() {
    const [x, y] = this.cursor;
    const size = this.brush * this.zoom;
    this.ring.hidden = false;
    this.ring.style.width = this.ring.style.height = `${size}px`;
    this.ring.style.left = `${x * this.zoom - size / 2}px`;
    this.ring.style.top = `${y * this.zoom - size / 2}px`;
  }

  /** The hole as a PNG in base64, white where it is; null where nothing is painted. */
  async encodeMask() {
    const { width, height } = this.hole;
    const painted = this.hole.getContext("2d").getImageData(0, 0, width, height);
    let count = 0;
    for (let place = 0; place < painted.data.length; place += 4) {
      const value = painted.data[place + 3] > 0 ? 255 : 0;
      count += value > 0;
      painted.data.set([value, value, value, 255], place);
    }
    if (!count) {
      return null;
    }
    const canvas = element("canvas", { width, height });
    canvas.getContext("2d").putImageData(painted, 0, 0);
    return toBase64(await new Promise((resolve) => canvas.toBlob(resolve, "image/png")));
  }

  /** Paint the hole of a mask in base64. */
  async showMask(base64) {
    const bitmap = await createImageBitmap(toBlob(base64));
    const canvas = element("canvas", { width: bitmap.width, height: bitmap.height });
    const context = canvas.getContext("2d");
    context.drawImage(bitmap, 0, 0);
    const pixels = context.getImageData(0, 0, bitmap.width, bitmap.height);
    for (let place = 0; place < pixels.data.length; place += 4) {
      const alpha = pixels.data[place] > 127 ? 191 : 0;
      pixels.data.set([224, 122, 31, alpha], place);
    }
    this.hole.getContext("2d").putImageData(pixels, 0, 0);
  }
}

export async function toBase64(blob) {
  const bytes = new Uint8Array(await blob.arrayBuffer());
  let text = "";
  for (let place = 0; place < bytes.length; place += 8192) {
    text += String.fromCharCode(...bytes.subarray(place, place + 8192));
  }
  return btoa(text);
}

export function toBlob(base64, type = "image/png") {
  const text = atob(base64);
  return new Blob([Uint8Array.from(text, (letter) => letter.charCodeAt(0))], { type });
}
