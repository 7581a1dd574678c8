# Compilers, an exception and a thread of C++.
# needs: g++
set -e
echo 'int f(int); int main(){return f(3);}' > a.c; echo 'int f(int x){return x+1;}' > b.c; gcc -O2 -pipe -c a.c b.c; gcc a.o b.o -o p; ./p || echo $?; echo '#include <iostream>
#include <stdexcept>
#include <thread>
int main(){ try { throw std::runtime_error("x"); } catch (std::exception&e) { std::cout << e.what() << std::endl; } std::thread t([]{std::cout << "t" << std::endl;}); t.join(); }' > c.cc; g++ -pthread c.cc -o c && ./c
