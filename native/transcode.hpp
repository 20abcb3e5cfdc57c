// A block's rows from one codec to another, row by row through fp32, for tiers that store blocks in
// a denser form. Bytes are those of the codecs' own `decode` and `encode` in Python.
// Included inside the namespace of an instruction set.

namespace {

typedef void (*LoadRow)(const Plane&, const RowAt&, float*);
typedef void (*StoreRow)(const Plane&, const float*, const RowAt&);

// Only where one of the two forms has a centre does a key meet it: what both store less of it stays so.
void transcode(const Plane& from, const Plane& to, const uint8_t* source, uint8_t* target, int n_tokens,
               int64_t start_position) {
  alignas(64) float row[MAX_DIM];
  LoadRow load_from = nullptr;
  StoreRow store_to = nullptr;
  with_codec(from, [&]<Codec C>() { load_from = load_row<C>; });
  with_codec(to, [&]<Codec C>() { store_to = store_row<C>; });
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
