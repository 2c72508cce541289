#include "ranks.hpp"

namespace spc::bench {

Ranks::Ranks() : kind("one process") {}
Ranks::~Ranks() = default;
double Ranks::sum(double own) const { return own; }
double Ranks::largest(double own) const { return own; }
void Ranks::wait_for_all() const {}

}  // namespace spc::bench
