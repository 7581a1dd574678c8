# A static program.
# needs: gcc
set -e
printf 'int puts(const char*); int main(){puts("static"); return 5;}' > s.c; gcc -static s.c -o s; ./s || echo $?; bash -c './s'|| echo $?
