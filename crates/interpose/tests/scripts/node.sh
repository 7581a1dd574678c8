# Workers and children of Node.js.
# needs: node
set -e
node -e 'const fs=require("fs"),cp=require("child_process"); fs.writeFileSync("a","x".repeat(1e5)); console.log(fs.readFileSync("a").length, cp.execSync("echo child").toString()); const {Worker}=require("worker_threads"); new Worker("console.log(\"worker\")",{eval:true}).on("exit",c=>{console.log("exit",c); fs.promises.readFile("a").then(b=>console.log(b.length))}); cp.spawnSync("sh",["-c","exit 3"]);'
