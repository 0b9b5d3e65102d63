# plimsoll._core, what the Python package holds: found by `pip install .`, which sets PLIMSOLL_PYTHON.
find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module OPTIONAL_COMPONENTS Development.SABIModule)
find_package(nanobind CONFIG REQUIRED)
nanobind_add_module(plimsoll_python STABLE_ABI NB_STATIC python/bind/arrays.cpp python/bind/core.cpp python/bind/fallback.cpp
  python/bind/ranks.cpp python/bind/staging.cpp)
set_target_properties(plimsoll_python PROPERTIES OUTPUT_NAME _core)
target_include_directories(plimsoll_python PRIVATE src python/bind)
target_link_libraries(plimsoll_python PRIVATE plimsoll fmt::fmt nlohmann_json::nlohmann_json)
install(TARGETS plimsoll_python LIBRARY DESTINATION plimsoll COMPONENT python)
# Beside it what several processes started by mpirun need, where MPI was found, and what a GPU needs, where CUDA was.
foreach(module plimsoll_mpi plimsoll_cuda)
  if(TARGET ${module})
    add_dependencies(plimsoll_python ${module})
    install(TARGETS ${module} LIBRARY DESTINATION plimsoll COMPONENT python)
  endif()
endforeach()
