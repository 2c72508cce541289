spc_unit_test(layer_test
  SOURCES layer_rules.cpp layer_damage.cpp layer_sparse.cpp layer_process.cpp layer_image.cpp
  LIBS spc_layer spc_verify spc_layer_process spc_base)
target_compile_definitions(layer_test PRIVATE SPC_LAYER_WRITER="$<TARGET_FILE:layer-writer>")
add_dependencies(layer_test layer-writer)
spc_unit_test(verify_test
  SOURCES verify_hostile.cpp verify_large.cpp verify_mutations.cpp verify_parts.cpp verify_process.cpp layer_image.cpp
  LIBS spc_layer spc_verify spc_verify_sandbox spc_base)
target_compile_definitions(verify_test PRIVATE SPC_LAYER_VERIFIER="$<TARGET_FILE:layer-verifier>")
add_dependencies(verify_test layer-verifier)
