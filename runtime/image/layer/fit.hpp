#pragma once

#include "image/layer/below/layers_below.hpp"
#include "image/layer/data_writer.hpp"
#include "image/layer/tree.hpp"

namespace spc::below {

/// Takes whiteouts away that hide nothing whatever lies below, since their directory hides that.
/// Returns whether what is left of the layer means another thing above other layers: then it has to
/// be fitted to them.
bool depends_on_layers_below(Inode& root);

/// Makes of the layer's tree what extracting its archive over the layers below would add to them:
///
/// - A directory that the archive only implies keeps the permissions, date and attributes that it
/// has below; if it is a link
///   there, its entries go where the link leads. Nothing below, or a link that leads nowhere: a new
///   directory, 0755.
/// - A hard link to a file below becomes a copy of that file.
/// - A whiteout of what is not below is dropped: overlayfs would show it in a directory that no
/// other layer has.
///
/// - An opaque root, which overlayfs ignores, becomes a whiteout of each name below, and opaque
/// directories.
///
/// `writer` takes the copied data. What that takes counts for `budget`.
Result<void> fit(Inode& root, LayersBelow& layers, DataWriter& writer, Budget& budget);

/// Fills the empty directory `root` with what overlayfs shows of the layers of `run` together. What
/// they hide of layers below them stays hidden: by whiteouts and opaque directories. `writer` takes
/// the data. Returns the number of entries; more than `most_entries` are refused.
Result<std::uint64_t> merge(Inode& root, LayersBelow& run, DataWriter& writer,
                            std::uint64_t most_entries, Budget& budget);

}  // namespace spc::below
