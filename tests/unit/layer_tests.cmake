spc_unit_test(layer_test
  SOURCES layer_rules.cpp layer_damage.cpp layer_process.cpp layer_image.cpp
  LIBS spc_layer spc_verify spc_layer_process spc_base)
target_compile_definitions(layer_test PRIVATE SPC_LAYER_WRITER="$<TARGET_FILE:layer-writer>")
add_dependencies(layer_test layer-writer)
