"""Thumbnails of PPM images (P6): the average colour of each block of pixels. Pure Python, all CPU."""

from cattlegrid import worker


@worker.job
def thumbnail(image: bytes, factor: bytes):
    factor = int(factor)
    magic, size, depth, pixels = image.split(b"\n", 3)
    if magic != b"P6" or depth != b"255":
        raise worker.JobError("format", "not a binary PPM with 255 colours")
    width, height = map(int, size.split())
    out = bytearray()
    for top in range(0, height - height % factor, factor):
        if worker.cancelled():
            raise worker.JobError("cancelled")
        for left in range(0, width - width % factor, factor):
            for colour in range(3):
                total = 0
                for y in range(top, top + factor):
                    start = (y * width + left) * 3 + colour
                    total += sum(pixels[start : start + factor * 3 : 3])
                out.append(total // (factor * factor))
    return b"P6\n%d %d\n255\n%s" % (width // factor, height // factor, bytes(out))
