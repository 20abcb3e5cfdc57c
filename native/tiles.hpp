// A tile of 128 keys or values of one head, as the products take it: where its panels or rows lie in
// the arena or, where the arena's order does not fit the lanes, in a copy; and its scales.
// Included inside the namespace of an instruction set.

struct Span {
  int start, stop;
};

constexpr int TILE_PANELS = TILE_TOKENS / PANEL_TOKENS;

// Keys: [unit][16 tokens] each, units `stride` bytes apart. Only panels in the span are there, and
// tokens of theirs beside the span hold anything, NaN included.
struct KeyPanels {
  int64_t stride;
  const uint8_t* at[TILE_PANELS];
};

// Values: of each 16 tokens the rows, of a whole number of chunks, `stride` bytes apart. Rows of them
// beside the span hold anything, too.
struct ValueRows {
  int64_t stride;
  const uint8_t* at[TILE_PANELS];
};

// Scales of a tile's rows, group by group; 0 beside the span.
struct Levels {
  int n_groups;
  alignas(64) float scales[MOST_GROUPS][TILE_TOKENS];
};

// Calls `use(block, token of the block, token of the tile, tokens)` for the runs of a span in a block.
template <class Use>
INLINE void each_run(const Sequences& seqs, const uint8_t* arena, int sequence, int tile, Span span, Use use) {
  const int64_t* offsets = seqs.offsets + sequence * seqs.max_blocks;
  int block = (tile + span.start) / seqs.block_tokens, token = (tile + span.start) % seqs.block_tokens;
  for (int i = span.start; i < span.stop; ++block, token = 0) {
    int n = seqs.block_tokens - token < span.stop - i ? seqs.block_tokens - token : span.stop - i;
    use(arena + offsets[block], token, i, n);
    i += n;
  }
}

// Cache lines of 16 rows, less what rounds down.
template <Codec C>
INLINE int panel_lines(int dim) { return dim / Unit<C>::dims * Unit<C>::bytes * PANEL_TOKENS / 64; }

// Where the panels of a span begin, which lie in one block each.
INLINE void find_panels(const Sequences& seqs, const uint8_t* arena, int sequence, const Field& f, int head, int tile,
                        Span span, const uint8_t** found) {
  each_run(seqs, arena, sequence, tile, span, [&](const uint8_t* block, int token, int i, int n) {
    int first = i / PANEL_TOKENS * PANEL_TOKENS;
    const uint8_t* at = block + f.offset + head * f.head_stride + (token + first - i) * f.token_stride;
    for (int j = first; j < i + n; j += PANEL_TOKENS, at += PANEL_TOKENS * f.token_stride) found[j / PANEL_TOKENS] = at;
  });
}

template <int bytes>
INLINE void copy_units(const uint8_t* from, int64_t from_stride, uint8_t* to, int64_t to_stride, int n) {
  for (int u = 0; u < n; ++u) __builtin_memcpy(to + u * to_stride, from + u * from_stride, bytes);
}

// Four rows of fp32 as four columns of a panel.
INLINE void transpose_rows(const float (*rows)[MAX_DIM], int dim, float* panel) {
  for (int d = 0; d < dim; d += 4) {
    F4 a = load<F4>(rows[0] + d), b = load<F4>(rows[1] + d), c = load<F4>(rows[2] + d), e = load<F4>(rows[3] + d);
    F4 ab = __builtin_shufflevector(a, b, 0, 4, 1, 5), ce = __builtin_shufflevector(c, e, 0, 4, 1, 5);
    F4 ab_high = __builtin_shufflevector(a, b, 2, 6, 3, 7), ce_high = __builtin_shufflevector(c, e, 2, 6, 3, 7);
    store(panel + d * PANEL_TOKENS, __builtin_shufflevector(ab, ce, 0, 1, 4, 5));
    store(panel + (d + 1) * PANEL_TOKENS, __builtin_shufflevector(ab, ce, 2, 3, 6, 7));
    store(panel + (d + 2) * PANEL_TOKENS, __builtin_shufflevector(ab_high, ce_high, 0, 1, 4, 5));
    store(panel + (d + 3) * PANEL_TOKENS, __builtin_shufflevector(ab_high, ce_high, 2, 3, 6, 7));
  }
}

template <Codec C>
void find_keys(const Sequences& seqs, const uint8_t* arena, int sequence, const Plane& p, int head, int tile,
               Span span, float* room, KeyPanels& found) {
  constexpr int bytes = Unit<C>::bytes;
  int n_units = p.dim / Unit<C>::dims;
  auto* copy = reinterpret_cast<uint8_t*>(room);
  int64_t panel_bytes = int64_t(n_units) * PANEL_TOKENS * bytes;
  found.stride = PANEL_TOKENS * bytes;
  if (in_units<C> && p.data.token_stride == bytes && seqs.block_tokens % PANEL_TOKENS == 0) {
    found.stride = p.data.unit_stride;
    return find_panels(seqs, arena, sequence, p.data, head, tile, span, found.at);
  }
  for (int i = span.start / PANEL_TOKENS; i * PANEL_TOKENS < span.stop; ++i) found.at[i] = copy + i * panel_bytes;
  if constexpr (in_units<C>) {
    each_run(seqs, arena, sequence, tile, span, [&](const uint8_t* block, int token, int i, int n) {
      for (int stop = i + n; i < stop; ++i, ++token)
        copy_units<bytes>(row_at(p, block, head, token).data, p.data.unit_stride,
                          copy + i / PANEL_TOKENS * panel_bytes + i % PANEL_TOKENS * bytes, found.stride, n_units);
    });
  } else {
    alignas(64) float rows[4][MAX_DIM];
    each_run(seqs, arena, sequence, tile, span, [&](const uint8_t* block, int token, int i, int n) {
      for (int stop = i + n; i < stop; ++i, ++token) {
        decode_row<C>(row_at(p, block, head, token), p.dim, p.dim, rows[i % 4]);
        if (i % 4 == 3 || i + 1 == span.stop)
          transpose_rows(rows, p.dim, room + i / PANEL_TOKENS * panel_bytes / 4 + i % PANEL_TOKENS / 4 * 4);
      }
    });
  }
}

template <Codec C>
void find_values(const Sequences& seqs, const uint8_t* arena, int sequence, const Plane& p, int head, int tile,
                 Span span, int chunk_dims, float* room, ValueRows& found) {
  constexpr int bytes = Unit<C>::bytes, dims = Unit<C>::dims;
  auto* copy = reinterpret_cast<uint8_t*>(room);
  int padded = (p.dim + chunk_dims - 1) / chunk_dims * chunk_dims;
  int64_t row_bytes = int64_t(padded) / dims * bytes;
  bool there = (in_units<C> || C == Codec::fp32) && padded == p.dim && p.data.unit_stride == p.data.unit_bytes &&
               seqs.block_tokens % PANEL_TOKENS == 0;
  found.stride = there ? p.data.token_stride : row_bytes;
  if (there) return find_panels(seqs, arena, sequence, p.data, head, tile, span, found.at);
  for (int i = span.start / PANEL_TOKENS; i * PANEL_TOKENS < span.stop; ++i)
    found.at[i] = copy + i * PANEL_TOKENS * row_bytes;
  each_run(seqs, arena, sequence, tile, span, [&](const uint8_t* block, int token, int i, int n) {
    for (int stop = i + n; i < stop; ++i, ++token) {
      RowAt row = row_at(p, block, head, token);
      if constexpr (in_units<C>) {
        uint8_t* to = copy + i * row_bytes;
        copy_units<bytes>(row.data, p.data.unit_stride, to, bytes, p.dim / dims);
        for (int64_t at = int64_t(p.dim) / dims * bytes; at < row_bytes; ++at) to[at] = 0;
      } else {
        decode_row<C>(row, p.dim, padded, room + i * padded);
      }
    }
  });
}

// n scales of bf16 (int8's) or fp16 (int4's).
template <Codec C>
INLINE void load_scales(const uint8_t* from, int64_t stride, int n, float* to) {
  int i = 0;
  if (stride == 2)
    for (; i + LANES <= n; i += LANES)
      store(to + i, C == Codec::int8 ? (F)(widen16(from + 2 * i) << 16) : from_fp16(from + 2 * i));
  for (; i < n; ++i) {
    auto bits = load<uint16_t>(from + i * stride);
    to[i] = C == Codec::int8 ? float_of(uint32_t(bits) << 16) : half_to_float(bits);
  }
}

template <Codec C>
void load_levels(const Sequences& seqs, const uint8_t* arena, int sequence, const Plane& p, int head, int tile,
                 Span span, Levels& levels) {
  if constexpr (C != Codec::int8 && C != Codec::int4) return;
  levels.n_groups = C == Codec::int4 ? int4_groups(p.dim) : 1;
  for (int g = 0; g < levels.n_groups; ++g) {
    for (int i = 0; i < span.start; ++i) levels.scales[g][i] = 0;
    for (int i = span.stop; i < TILE_TOKENS; ++i) levels.scales[g][i] = 0;
  }
  each_run(seqs, arena, sequence, tile, span, [&](const uint8_t* block, int token, int i, int n) {
    const uint8_t* from = row_at(p, block, head, token).scale;
    for (int g = 0; g < levels.n_groups; ++g)
      load_scales<C>(from + g * p.scale.unit_stride, p.scale.token_stride, n, levels.scales[g] + i);
  });
}

// Fetches the blocks of a tile, keys and then values, and then those of the next, a cache line or
// more for each line that a product takes: so most of a tile ahead of its use, in runs of all heads.
struct Ahead {
  struct Run {
    int64_t offset, n_bytes;
  };

  const Sequences& seqs;
  const uint8_t* arena;
  const int64_t* offsets;  // of the sequence's blocks
  int tile_blocks, n_heads;
  int tile, block, stop;  // first block of the tile, block that is fetched, end of all
  int plane = 0, run = 0, n_runs[2] = {};
  Run runs[2][4];
  const uint8_t *at = nullptr, *end = nullptr;
  int lines;  // for each line that is taken

  Ahead(const Attend& call, const Entry& entry, int first_token, int stop_token)
      : seqs(*call.sequences), arena(call.arena), offsets(seqs.offsets + entry.sequence * seqs.max_blocks),
        tile_blocks((TILE_TOKENS + seqs.block_tokens - 1) / seqs.block_tokens), n_heads(entry.n_heads),
        tile(first_token / seqs.block_tokens), block(tile),
        stop((stop_token + seqs.block_tokens - 1) / seqs.block_tokens), lines(n_heads + 1) {
    const Plane* planes[] = {call.keys, call.values};
    for (int p = 0; p < 2; ++p)
      for (const Field* f : {&planes[p]->data, &planes[p]->high, &planes[p]->scale, &planes[p]->minimum})
        if (f->head_stride)
          runs[p][n_runs[p]++] = {f->offset + entry.head * f->head_stride, entry.n_heads * f->head_stride};
    open();
  }

  void open() {
    for (; block < stop; ++block)
      if (offsets[block] >= 0) {
        at = arena + offsets[block] + runs[plane][run].offset;
        end = at + runs[plane][run].n_bytes;
        return;
      }
    lines = 0;
  }

  void next() {
    if (++run == n_runs[plane]) {
      run = 0, ++block;
      int last = tile + tile_blocks < stop ? tile + tile_blocks : stop;
      if (block >= last) {
        if (plane) tile = last;
        block = tile;
        plane = !plane;
      }
    }
    open();
  }

  // The product takes `n` lines. Not inlined: it would crowd the product's registers.
  __attribute__((noinline)) void take(int n) {
    for (n *= lines; n > 0 && lines; next())
      for (; at < end; at += 64) {
        if (n-- == 0) return;
        __builtin_prefetch(at, 0, 2);  // into the second cache: a tile of all heads is more than the first holds
      }
  }

  // A head of the tile that ends before `token` begins: as fast as it takes to be a tile ahead.
  void pace(int token) {
    if (lines) lines = tile >= token / seqs.block_tokens ? 1 : n_heads + 1;
  }
};
