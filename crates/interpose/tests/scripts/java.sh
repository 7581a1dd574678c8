# Threads, files and a child of a JVM.
# needs: java
set -e
cat > A.java <<'X'
import java.nio.file.*; import java.util.*; import java.util.concurrent.*;
public class A { public static void main(String[] a) throws Exception { Path p=Paths.get("x"); Files.write(p,new byte[100000]); System.out.println(Files.size(p)); ExecutorService e=Executors.newFixedThreadPool(4); List<Future<Integer>> l=new ArrayList<>(); for(int i=0;i<50;i++){int k=i; l.add(e.submit(()->{ return Files.readAllBytes(p).length+k;}));} int s=0; for(var f:l) s+=f.get(); System.out.println(s); e.shutdown(); Process q=new ProcessBuilder("sh","-c","echo hi; exit 4").redirectErrorStream(true).start(); System.out.print(new String(q.getInputStream().readAllBytes())); System.out.println(q.waitFor()); try { Object o=null; o.toString(); } catch (NullPointerException x) { System.out.println("npe"); } System.gc(); } }
X
java A.java
