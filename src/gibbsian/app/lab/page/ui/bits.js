// A lattice of states as a picture, one pixel a site.

import { rgb } from "./dom.js";

export class Bits {
  constructor(canvas) {
    this.canvas = canvas;
    canvas.classList.add("pixels");
    this.ctx = canvas.getContext("2d", { alpha: false });
    this.size = 0;
  }

  fit() {
    this.canvas.style.height = `${this.canvas.clientWidth}px`;
  }

  show(spins, size, palette) {
    if (this.size !== size) {
      this.size = this.canvas.width = this.canvas.height = size;
      this.image = this.ctx.createImageData(size, size);
      this.words = new Uint32Array(this.image.data.buffer);
      this.fit();
    }
    const words = palette.map((hex) => {
      const [r, g, b] = rgb(hex);
      return (255 << 24) | (b << 16) | (g << 8) | r;
    });
    for (let i = 0; i < spins.length; i++) this.words[i] = words[spins[i]];
    this.ctx.putImageData(this.image, 0, 0);
  }
}
