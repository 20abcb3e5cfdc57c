// A block's rows from one codec to another, row by row through fp32, for tiers that store blocks in
// a denser form. Bytes are those of the codecs' own `decode` and `encode` in Python.
// Included inside the namespace of an instruction set.

namespace {

template <int bytes>
INLINE void gather(const uint8_t* from, const Field& f, uint8_t* to, int n_bytes) {
  for (int at = 0; at < n_bytes; at += bytes, from += f.unit_stride) __builtin_memcpy(to + at, from, bytes);
}

// `row` has room for MAX_DIM.
template <Codec C>
void load_row(const Plane& p, const RowAt& from, float* row) {
  if constexpr (in_units<C>) {
    alignas(64) uint8_t data[MAX_DIM * 2], scale[2 * MOST_GROUPS] = {};
    gather<Unit<C>::bytes>(from.data, p.data, data, p.dim / Unit<C>::dims * Unit<C>::bytes);
    if constexpr (is_turned<C>)
      gather<2>(from.scale, p.scale, scale, C == Codec::int4 ? 2 * int4_groups(p.dim) : 2);
    if constexpr (C == Codec::bf16)
      for (int d = 0; d < p.dim; ++d) row[d] = float_of(uint32_t(load<uint16_t>(data + 2 * d)) << 16);
    if constexpr (C == Codec::int8) {
      float step = float_of(uint32_t(load<uint16_t>(scale)) << 16);
      for (int d = 0; d < p.dim; ++d) row[d] = float(int8_t(data[d])) * step;
    }
    if constexpr (C == Codec::int4) {
      float steps[MOST_GROUPS];
      for (int g = 0; g < int4_groups(p.dim); ++g) steps[g] = half_to_float(load<uint16_t>(scale + 2 * g));
      for (int d = 0; d < p.dim; ++d) row[d] = float(INT4_VALUES[data[d / 2] >> d % 2 * 4 & 15]) * steps[int4_group(d)];
    }
    if constexpr (is_turned<C>) turn_back(row, p.dim);
  } else {
    decode_row<C>(from, p.dim, p.dim, row);
  }
}

template <Codec C>
void store_one(const Plane& p, const float* row, const RowAt& to) {
  store_row<C>(p, row, to);
}

typedef void (*LoadRow)(const Plane&, const RowAt&, float*);
typedef void (*StoreRow)(const Plane&, const float*, const RowAt&);

LoadRow loader(Codec codec) {
#define ONE(name) \
  case Codec::name: return load_row<Codec::name>;
  switch (codec) { EVERY_CODEC(ONE) }
#undef ONE
  return nullptr;
}

StoreRow storer(Codec codec) {
#define ONE(name) \
  case Codec::name: return store_one<Codec::name>;
  switch (codec) { EVERY_CODEC(ONE) }
#undef ONE
  return nullptr;
}

// Only where one of the two forms has a centre does a key meet it: what both store less of it stays so.
void transcode(const Plane& from, const Plane& to, const uint8_t* source, uint8_t* target, int n_tokens,
               int64_t start_position) {
  alignas(64) float row[MAX_DIM];
  LoadRow load_from = loader(from.codec);
  StoreRow store_to = storer(to.codec);
  bool restores = from.centre.mean && !to.centre.mean, subtracts = to.centre.mean && !from.centre.mean;
  int64_t most = restores ? from.centre.most_tokens : to.centre.most_tokens;
  for (int head = 0; head < from.heads; ++head)
    for (int token = 0; token < n_tokens; ++token) {
      load_from(from, row_at(from, source, head, token), row);
      int64_t position = start_position + token;
      if (position < most) {
        if (restores) add_centre(from, head, int(position), row);
        if (subtracts) subtract_centre(to, head, int(position), row, row);
      }
      store_to(to, row, row_at(to, target, head, token));
    }
}

}  // namespace
