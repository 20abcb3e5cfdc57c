// How weights lie in memory, and how rows get there. Not part of any instruction set.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "types.hpp"

namespace holdover {

namespace {

int64_t round_up(int64_t n, int64_t to) { return (n + to - 1) / to * to; }

// To nearest, to even; NaN stays NaN.
uint16_t to_bf16(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return x == x ? uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16) : 0x7fc0;
}

// Place of an element in its panel, in elements.
int64_t place(Element element, int input, int lane) {
  if (element == Element::fp32) return int64_t(input) * PANEL + lane;
  return int64_t(input / 2) * 2 * PANEL + 2 * lane + input % 2;
}

template <class Stored, class Store>
void pack_row(Element element, const float* row, int inputs, int lane, uint8_t* panel, Store store) {
  Stored* to = reinterpret_cast<Stored*>(panel);
  for (int i = 0; i < inputs; ++i) to[place(element, i, lane)] = store(row[i]);
  if (inputs % 2) to[place(element, inputs, lane)] = Stored(0);
}

// The largest magnitude; NaN where any weight is no finite number.
float largest_magnitude(const float* row, int inputs) {
  float most = 0;
  for (int i = 0; i < inputs; ++i) {
    if (!std::isfinite(row[i])) return NAN;
    most = std::max(most, std::fabs(row[i]));
  }
  return most;
}

}  // namespace

int64_t panel_bytes(Element element, int inputs) {
  int bytes = element == Element::fp32 ? 4 : element == Element::bf16 ? 2 : 1;
  return round_up(round_up(inputs, 2) * PANEL * bytes, 64);
}

int64_t matrix_bytes(Element element, int outputs, int inputs) {
  int64_t panels = round_up(outputs, PANEL) / PANEL * panel_bytes(element, inputs);
  return panels + (element == Element::int8 ? round_up(outputs, PANEL) * int64_t(sizeof(float)) : 0);
}

int64_t operand_bytes(Element element, int inputs) {
  int64_t padded = round_up(inputs, 2);
  if (element != Element::int8) return round_up(padded * int64_t(sizeof(float)), 64);
  return round_up(padded * int64_t(sizeof(int16_t)), 64) +
         round_up(round_up(inputs, SEGMENT) / SEGMENT * int64_t(sizeof(float)), 64);
}

Matrix packed(Element element, int outputs, int inputs, const uint8_t* from, const float* bias) {
  Matrix m{element, outputs, inputs, from, nullptr, bias};
  if (element == Element::int8)
    m.scales = reinterpret_cast<const float*>(from + m.n_panels() * panel_bytes(element, inputs));
  return m;
}

void pack(Element element, const float* rows, int n_rows, int outputs, int inputs, int first_output,
          uint8_t* to) {
  const std::vector<float> nothing(inputs);
  float* scales = const_cast<float*>(packed(element, outputs, inputs, to, nullptr).scales);
  int last = first_output + n_rows;
  if (last == outputs) last = int(round_up(outputs, PANEL));  // the padding is the last output's to write
  for (int output = first_output; output < last; ++output) {
    const float* row = output < outputs ? rows + int64_t(output - first_output) * inputs : nothing.data();
    uint8_t* panel = to + output / PANEL * panel_bytes(element, inputs);
    int lane = output % PANEL;
    if (element == Element::fp32) {
      pack_row<float>(element, row, inputs, lane, panel, [](float x) { return x; });
    } else if (element == Element::bf16) {
      pack_row<uint16_t>(element, row, inputs, lane, panel, to_bf16);
    } else {
      float scale = largest_magnitude(row, inputs) / 127.0f, divisor = scale > 0 ? scale : 1.0f;
      scales[output] = scale;
      pack_row<int8_t>(element, row, inputs, lane, panel, [&](float x) {
        return int8_t(std::isfinite(x) ? std::lrint(std::clamp(x / divisor, -127.0f, 127.0f)) : 0);
      });
    }
  }
}

}  // namespace holdover
