"""Prints each colour of a PNG as "rrggbb pixels", the most frequent first. 8-bit RGB or RGBA, as rsvg-convert writes."""
import collections
import struct
import sys
import zlib


def rows(data):
    assert data[:8] == b"\x89PNG\r\n\x1a\n", "no PNG"
    at, packed = 8, b""
    while at < len(data):
        (size,), kind = struct.unpack(">I", data[at : at + 4]), data[at + 4 : at + 8]
        body = data[at + 8 : at + 8 + size]
        if kind == b"IHDR":
            width, _, depth, color, _, _, interlaced = struct.unpack(">IIBBBBB", body)
            assert depth == 8 and color in (2, 6) and not interlaced, "not a PNG of this kind"
            step = 3 if color == 2 else 4
        elif kind == b"IDAT":
            packed += body
        at += 12 + size
    raw, stride = zlib.decompress(packed), width * step
    above = bytearray(stride)
    for begin in range(0, len(raw), stride + 1):
        method, row = raw[begin], bytearray(raw[begin + 1 : begin + 1 + stride])
        for i in range(stride):
            a, b, c = (row[i - step] if i >= step else 0), above[i], (above[i - step] if i >= step else 0)
            if method == 1:
                row[i] = row[i] + a & 255
            elif method == 2:
                row[i] = row[i] + b & 255
            elif method == 3:
                row[i] = row[i] + (a + b) // 2 & 255
            elif method == 4:
                p = a + b - c
                row[i] = row[i] + min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2] & 255
        yield [bytes(row[i : i + 3]) for i in range(0, stride, step)]
        above = row


colors = collections.Counter()
with open(sys.argv[1], "rb") as file:
    for row in rows(file.read()):
        colors.update(row)
for color, pixels in colors.most_common():
    print(color.hex(), pixels)
