// A task's queries as products with keys take them.
// Included inside the namespace of an instruction set.

constexpr int QUERY_PARTS = 2;  // of bf16

// Parts of bf16 that a query is taken as; one that meets sinks is of the same type.
INLINE int query_parts(const Task& t) { return t.in_registers || !t.call.query.bf16 ? QUERY_PARTS : 1; }

// High bytes of a row's levels and then low ones, in the order of the keys' quads. int4: of each
// span those of its first group and then of its second, zeros at the other's dims.
template <Codec C>
INLINE void split_levels(const int32_t* levels, int dim, uint8_t* to) {
  if constexpr (C == Codec::int8) {
    for (int d = 0; d < dim; ++d) to[d] = uint8_t(levels[d] >> 8), to[dim + d] = uint8_t(levels[d]);
  } else {
    __builtin_memset(to, 0, 4 * dim);
    for (int d = 0; d < dim; ++d) {
      int place = (d / 8 * 2 + d % 2) * 4 % REGISTER_BYTES + d % 8 / 2;
      uint8_t* group = to + int4_group(d) * 2 * REGISTER_BYTES;
      group[place] = uint8_t(levels[d] >> 8), group[REGISTER_BYTES + place] = uint8_t(levels[d]);
    }
  }
}

// A query's words, and their scale; `excess` as prepare_query has it.
template <Codec C>
INLINE float prepare_words(const Task& t, float* x, int dim, int32_t* words, int32_t* excess) {
  float scale = t.call.scale;
  if (!t.in_registers) return prepare_query<C>(x, dim, query_parts(t), scale, words, excess);
  if constexpr (in_integers<C>) {
    alignas(64) int32_t levels[MAX_DIM];
    scale *= to_levels(x, dim, levels);
    split_levels<C>(levels, dim, reinterpret_cast<uint8_t*>(words));
    return scale;
  }
  for (int d = 0; d < dim; ++d) x[d] *= scale;
  return prepare_query<C>(x, dim, QUERY_PARTS, 1, words, excess);
}

// Words of 32 bits of a query's row.
template <Codec C>
INLINE int row_words(const Task& t, int dim) {
  if (t.in_registers && C == Codec::int4) return dim;
  return query_words<C>(dim, query_parts(t));
}

// Calls `use.operator()<R>(row)` for all rows, R of whose words lie side by side.
template <class Use>
INLINE void by_query_rows(const Task& t, Use use) {
  if (t.in_registers) by_rows<1>(t.rows, use);
  else by_rows<KEY_ROWS>(t.rows, use);
}
