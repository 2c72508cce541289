#pragma once

namespace spc {

/// The variable by which our command `enroot` tells `scontainer run` whose manners it shall have: hooks of /etc/enroot and of
/// the user run and see the whole environment, the container only HOME, XDG_DATA_HOME, XDG_CONFIG_HOME and TERM.
inline constexpr char kStartedByEnroot[] = "SPANK_CONTAINER_STARTED_BY_ENROOT";

}  // namespace spc
