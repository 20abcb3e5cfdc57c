// Rows as the paged cache stores them: one row in and out, and a step's rows.
// Included inside the namespace of an instruction set.

template <int bytes>
INLINE void scatter(const uint8_t* from, const Field& f, uint8_t* to, int n_bytes) {
  for (int at = 0; at < n_bytes; at += bytes, to += f.unit_stride) __builtin_memcpy(to, from + at, bytes);
}

template <Codec C>
INLINE void store_row(const Plane& p, const float* row, const RowAt& to) {
  if constexpr (in_units<C>) {
    alignas(64) uint8_t data[MAX_DIM * 2], scale[2 * MOST_GROUPS];
    encode_row<C>(row, p.dim, {data, scale, nullptr, nullptr});
    scatter<Unit<C>::bytes>(data, p.data, const_cast<uint8_t*>(to.data), p.dim / Unit<C>::dims * Unit<C>::bytes);
    if constexpr (is_turned<C>)
      scatter<2>(scale, p.scale, const_cast<uint8_t*>(to.scale), C == Codec::int4 ? 2 * int4_groups(p.dim) : 2);
  } else {
    encode_row<C>(row, p.dim, to);
  }
}

// What a stored row stands for, less its centre if it has one; `row` has room for MAX_DIM.
template <Codec C>
INLINE void load_row(const Plane& p, const RowAt& from, float* row) {
  if constexpr (in_units<C>) {
    alignas(64) uint8_t data[MAX_DIM * 2];
    copy_units<Unit<C>::bytes>(from.data, p.data.unit_stride, data, Unit<C>::bytes, p.dim / Unit<C>::dims);
    if constexpr (C == Codec::bf16)
      for (int d = 0; d < p.dim; ++d) row[d] = float_of(uint32_t(load<uint16_t>(data + 2 * d)) << 16);
    if constexpr (C == Codec::int8) {
      float scale = float_of(uint32_t(load<uint16_t>(from.scale)) << 16);
      for (int d = 0; d < p.dim; ++d) row[d] = float(int8_t(data[d])) * scale;
    }
    if constexpr (C == Codec::int4) {
      float scales[MOST_GROUPS];
      for (int g = 0; g < int4_groups(p.dim); ++g)
        scales[g] = half_to_float(load<uint16_t>(from.scale + g * p.scale.unit_stride));
      for (int d = 0; d < p.dim; ++d) row[d] = float(INT4_VALUES[data[d / 2] >> d % 2 * 4 & 15]) * scales[int4_group(d)];
    }
    if constexpr (is_turned<C>) turn_back(row, p.dim);
  } else {
    decode_row<C>(from, p.dim, p.dim, row);
  }
}

template <Codec C>
void write_rows(const Write& call, int token_start, int token_stop) {
  const Sequences& seqs = *call.sequences;
  const Plane& p = *call.plane;
  alignas(64) float row[MAX_DIM];
  for (int s = 0; s < seqs.n_sequences; ++s) {
    int start = seqs.query_start[s] > token_start ? seqs.query_start[s] : token_start;
    int stop = seqs.query_start[s + 1] < token_stop ? seqs.query_start[s + 1] : token_stop;
    for (int token = start; token < stop; ++token) {
      int position = seqs.position(s, token);
      const uint8_t* block = call.arena + seqs.offsets[s * seqs.max_blocks + position / seqs.block_tokens];
      for (int head = 0; head < p.heads; ++head) {
        RowAt to = row_at(p, block, head, position % seqs.block_tokens);
        int64_t at = token * call.rows.token_stride + head * call.rows.head_stride;
        if (call.rows.bf16) {
          const uint16_t* from = static_cast<const uint16_t*>(call.rows.data) + at;
          if (C == Codec::bf16 && !p.centre.mean) {
            scatter<4>(reinterpret_cast<const uint8_t*>(from), p.data, const_cast<uint8_t*>(to.data), 2 * p.dim);
            continue;
          }
          for (int d = 0; d < p.dim; ++d) row[d] = float_of(uint32_t(from[d]) << 16);
        }
        const float* stored = call.rows.bf16 ? row : static_cast<const float*>(call.rows.data) + at;
        if (p.centre.mean) subtract_centre(p, head, position, stored, row), stored = row;
        store_row<C>(p, stored, to);
      }
    }
  }
}

void write(const Write& call, int token_start, int token_stop) {
  with_codec(*call.plane, [&]<Codec C>() { write_rows<C>(call, token_start, token_stop); });
}
