// A SIF file, from its first byte to its root file system.
// outcome 132 refused: not squashfs, version 3, truncated, tables past the end

#include "lib/property.hpp"
#include "reference/first_bytes.hpp"

using namespace spc;
using namespace spc::fuzz;

FUZZ_TARGET(sif) {
  const auto file = std::as_bytes(std::span(data, size));
  const auto table = parse_sif_header(file, size);
  if (!table) {
    must_be_readable(table.error());
    return 0;
  }
  must(looks_like_sif(file), "what has a table is a SIF file");
  must(table->offset <= size && table->size <= size - table->offset && table->size < 1 << 20,
       "the table lies within the file");
  const auto root = find_sif_root(file.subspan(table->offset, table->size), size, "amd64");
  if (!root) {
    must_be_readable(root.error());
    return 0;
  }
  must(root->size > 0 && root->offset <= size && root->size <= size - root->offset,
       "the root file system lies within the file");
  return 0;
}
