// A tile of 128 keys or values of one head, as the products take it: where its panels or rows lie in
// the arena or, where the arena's order does not fit the lanes, in a copy; and its scales.
// Included inside the namespace of an instruction set.

struct Span {
  int start, stop;
};

// What a query token sees of a tile, in tokens from its beginning: sinks, and [first, last].
struct Sight {
  int first, last, sinks;

  INLINE_MEMBER bool all_of(Span span) const { return first <= span.start && last >= span.stop - 1; }
  INLINE_MEMBER bool has(int i) const { return i <= last && (i >= first || i < sinks); }
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

// Scales as they are stored: for each panel's groups 16 of them, groups `stride` bytes apart. Beside
// the span they are anything.
struct Scales {
  int n_groups;
  int64_t stride;
  const uint8_t* at[TILE_PANELS];
  uint16_t copy[MOST_GROUPS][TILE_TOKENS];
};

// The parts of a tile's span that lie in one block each.
struct Runs {
  struct Run {
    const uint8_t* block;
    int token, at, n_tokens;  // first token of the block and of the tile
  };
  int n = 0;
  bool whole_panels;  // 16 tokens of the tile are in one block
  Run runs[TILE_TOKENS];

  Runs(const Sequences& seqs, const uint8_t* arena, int sequence, int tile, Span span)
      : whole_panels(seqs.block_tokens % PANEL_TOKENS == 0) {
    const int64_t* offsets = seqs.offsets + sequence * seqs.max_blocks;
    int block = (tile + span.start) / seqs.block_tokens, token = (tile + span.start) % seqs.block_tokens;
    for (int i = span.start; i < span.stop; ++block, token = 0) {
      int n_tokens = seqs.block_tokens - token < span.stop - i ? seqs.block_tokens - token : span.stop - i;
      runs[n++] = {arena + offsets[block], token, i, n_tokens};
      i += n_tokens;
    }
  }

  // Calls `use(block, token of the block, token of the tile, tokens)`.
  template <class Use>
  INLINE_MEMBER void each(Use use) const {
    for (int r = 0; r < n; ++r) use(runs[r].block, runs[r].token, runs[r].at, runs[r].n_tokens);
  }

  // The same, of tokens in one panel.
  template <class Use>
  INLINE_MEMBER void each_of_panels(Use use) const {
    each([&](const uint8_t* block, int token, int i, int n) {
      for (int stop = i + n, part; i < stop; i += part, token += part) {
        part = PANEL_TOKENS - i % PANEL_TOKENS;
        part = part < stop - i ? part : stop - i;
        use(block, token, i, part);
      }
    });
  }
};

// Cache lines of 16 rows, less what rounds down.
template <Codec C>
INLINE int panel_lines(int dim) { return dim / Unit<C>::dims * Unit<C>::bytes * PANEL_TOKENS / 64; }

// Where the panels of a span begin, which lie in one block each.
INLINE void find_panels(const Runs& runs, const Field& f, int head, const uint8_t** found) {
  runs.each([&](const uint8_t* block, int token, int i, int n) {
    int first = i / PANEL_TOKENS * PANEL_TOKENS;
    const uint8_t* at = block + f.offset + head * f.head_stride + (token + first - i) * f.token_stride;
    for (int j = first; j < i + n; j += PANEL_TOKENS, at += PANEL_TOKENS * f.token_stride) found[j / PANEL_TOKENS] = at;
  });
}

template <int bytes>
INLINE void copy_units(const uint8_t* from, int64_t from_stride, uint8_t* to, int64_t to_stride, int n) {
  for (int u = 0; u < n; ++u) __builtin_memcpy(to + u * to_stride, from + u * from_stride, bytes);
}

// Units of tokens, side by side in a panel: half a panel of them at once where they are so before,
// which is what blocks of 8 tokens have.
template <int bytes>
INLINE void copy_tokens(const uint8_t* from, int64_t from_stride, int64_t token_stride, uint8_t* to, int64_t to_stride,
                        int n, int n_tokens) {
  constexpr int half = PANEL_TOKENS / 2;
  for (; token_stride == bytes && n_tokens >= half; n_tokens -= half, from += half * bytes, to += half * bytes)
    copy_units<half * bytes>(from, from_stride, to, to_stride, n);
  for (; n_tokens > 0; --n_tokens, from += token_stride, to += bytes)
    copy_units<bytes>(from, from_stride, to, to_stride, n);
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
void find_keys(const Runs& runs, const Plane& p, int head, Span span, float* room, KeyPanels& found) {
  constexpr int bytes = Unit<C>::bytes;
  int n_units = p.dim / Unit<C>::dims;
  auto* copy = reinterpret_cast<uint8_t*>(room);
  int64_t panel_bytes = int64_t(n_units) * PANEL_TOKENS * bytes;
  found.stride = PANEL_TOKENS * bytes;
  if (in_units<C> && p.data.token_stride == bytes && runs.whole_panels) {
    found.stride = p.data.unit_stride;
    return find_panels(runs, p.data, head, found.at);
  }
  for (int i = span.start / PANEL_TOKENS; i * PANEL_TOKENS < span.stop; ++i) found.at[i] = copy + i * panel_bytes;
  if constexpr (in_units<C>) {
    runs.each_of_panels([&](const uint8_t* block, int token, int i, int n) {
      uint8_t* to = copy + i / PANEL_TOKENS * panel_bytes + i % PANEL_TOKENS * bytes;
      const uint8_t* from = row_at(p, block, head, token).data;
      copy_tokens<bytes>(from, p.data.unit_stride, p.data.token_stride, to, found.stride, n_units, n);
    });
  } else {
    alignas(64) float rows[4][MAX_DIM];
    runs.each([&](const uint8_t* block, int token, int i, int n) {
      for (int stop = i + n; i < stop; ++i, ++token) {
        decode_row<C>(row_at(p, block, head, token), p.dim, p.dim, rows[i % 4]);
        if (i % 4 == 3 || i + 1 == span.stop)
          transpose_rows(rows, p.dim, room + i / PANEL_TOKENS * panel_bytes / 4 + i % PANEL_TOKENS / 4 * 4);
      }
    });
  }
}

template <Codec C>
void find_values(const Runs& runs, const Plane& p, int head, Span span, int chunk_dims, float* room, ValueRows& found) {
  constexpr int bytes = Unit<C>::bytes, dims = Unit<C>::dims;
  auto* copy = reinterpret_cast<uint8_t*>(room);
  int padded = (p.dim + chunk_dims - 1) / chunk_dims * chunk_dims;
  int64_t row_bytes = int64_t(padded) / dims * bytes;
  bool there = (in_units<C> || C == Codec::fp32) && padded == p.dim && p.data.unit_stride == p.data.unit_bytes && runs.whole_panels;
  found.stride = there ? p.data.token_stride : row_bytes;
  if (there) return find_panels(runs, p.data, head, found.at);
  for (int i = span.start / PANEL_TOKENS; i * PANEL_TOKENS < span.stop; ++i)
    found.at[i] = copy + i * PANEL_TOKENS * row_bytes;
  runs.each([&](const uint8_t* block, int token, int i, int n) {
    for (int stop = i + n; i < stop; ++i, ++token) {
      RowAt row = row_at(p, block, head, token);
      if constexpr (in_units<C>) {
        uint8_t* to = copy + i * row_bytes;
        if (p.data.unit_stride == p.data.unit_bytes) __builtin_memcpy(to, row.data, p.dim / dims * bytes);
        else copy_units<bytes>(row.data, p.data.unit_stride, to, bytes, p.dim / dims);
        for (int64_t at = int64_t(p.dim) / dims * bytes; at < row_bytes; ++at) to[at] = 0;
      } else {
        decode_row<C>(row, p.dim, padded, room + i * padded);
      }
    }
  });
}

template <Codec C>
INLINE int scale_groups(int dim) { return C == Codec::int4 ? int4_groups(dim) : 1; }

// Scales of bf16 (int8's) or fp16 (int4's).
template <Codec C>
INLINE F scales_at(const uint8_t* from) { return C == Codec::int8 ? (F)(widen16(from) << 16) : from_fp16(from); }

template <Codec C>
void find_scales(const Runs& runs, const Plane& p, int head, Scales& found) {
  if constexpr (C != Codec::int8 && C != Codec::int4) return;
  found.n_groups = scale_groups<C>(p.dim);
  found.stride = p.scale.unit_stride;
  if (p.scale.token_stride == 2 && runs.whole_panels) return find_panels(runs, p.scale, head, found.at);
  found.stride = sizeof found.copy[0];
  for (int i = 0; i < TILE_PANELS; ++i) found.at[i] = reinterpret_cast<uint8_t*>(found.copy[0] + i * PANEL_TOKENS);
  runs.each([&](const uint8_t* block, int token, int i, int n) {
    for (int stop = i + n; i < stop; ++i, ++token) {
      const uint8_t* from = row_at(p, block, head, token).scale;
      for (int g = 0; g < found.n_groups; ++g) found.copy[g][i] = load<uint16_t>(from + g * p.scale.unit_stride);
    }
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
  int rate;  // lines for each that is taken; 0 at the end

  Ahead(const Attend& call, const Entry& entry, int first_token, int stop_token)
      : seqs(*call.sequences), arena(call.arena), offsets(seqs.offsets + entry.sequence * seqs.max_blocks),
        tile_blocks((TILE_TOKENS + seqs.block_tokens - 1) / seqs.block_tokens), n_heads(entry.n_heads),
        tile(first_token / seqs.block_tokens), block(tile),
        stop((stop_token + seqs.block_tokens - 1) / seqs.block_tokens), rate(n_heads + 1) {
    const Plane* planes[] = {call.keys, call.rope ? call.rope : call.values};
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
    rate = 0;
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

  // The first head's keys of the first tile, which are needed at once.
  void begin() {
    for (int b = tile; b < tile + tile_blocks && b < stop; ++b)
      for (int r = 0; r < n_runs[0] && offsets[b] >= 0; ++r) {
        const uint8_t* first = arena + offsets[b] + runs[0][r].offset;
        for (int64_t i = 0; i < runs[0][r].n_bytes / n_heads; i += 64) __builtin_prefetch(first + i, 0, 2);
      }
  }

  // The product takes `n` lines. Into the second cache: a tile of all heads is more than the first
  // holds, and what goes there takes its few places for misses.
  INLINE_MEMBER void take(int n) {
    n *= rate;
    if (end - at < 64 * n) return take_across(n);
    for (const uint8_t* stop = at + 64 * n; at < stop; at += 64) __builtin_prefetch(at, 0, 2);
  }

  // Beyond the end of a run. Not inlined: it would crowd the product's registers.
  __attribute__((noinline)) void take_across(int n) {
    for (; n > 0 && rate; next())
      for (; at < end; at += 64) {
        if (n-- == 0) return;
        __builtin_prefetch(at, 0, 2);
      }
  }

  // A head of the tile that ends before `token` begins: faster, until all is fetched a tile ahead.
  void pace(int token) {
    if (rate) rate = tile >= token / seqs.block_tokens ? 1 : n_heads + 1;
  }
};
