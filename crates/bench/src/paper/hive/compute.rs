//! Two programs that compute for most of their time, in place of the paper's *ocean* (a grid of 130
//! by 130) and *raytrace* (a scene with six rays a pixel). Each reads a small file and writes its
//! result, in a role of its own, so that the library of an interposed contender can be loaded into
//! it.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::process::ExitCode;

use rustix::process::Signal;

/// The role. Its arguments are the name of the program and a directory.
pub(crate) const ROLE: &str = "__bench-compute";

pub(super) const PROGRAMS: [&str; 2] = ["ocean", "raytrace"];

/// The programs read the first file and write the second.
pub(super) const INPUT: &str = "input";
pub(super) const OUTPUT: &str = "output";

const GRID: usize = 130;
const SWEEPS: usize = 8000;

const PIXELS: usize = 160;
const RAYS: usize = 6;
const SPHERES: usize = 24;

/// Writes the inputs of both programs, numbers as bytes.
pub(super) fn make_input(at: &Path) -> std::io::Result<()> {
    let bytes: Vec<u8> = (0..GRID * GRID).map(|at| (at * 31 % 251) as u8).collect();
    fs::write(at.join(INPUT), bytes)
}

/// The main function of the process.
pub(crate) fn main(arguments: &[OsString]) -> ExitCode {
    let [name, directory] = arguments else { return ExitCode::FAILURE };
    let _tied = rustix::process::set_parent_process_death_signal(Some(Signal::KILL));
    let directory = Path::new(directory);
    let performed = fs::read(directory.join(INPUT)).and_then(|input| {
        let output = match name.to_str() {
            Some("ocean") => ocean(&input),
            Some("raytrace") => raytrace(&input),
            _ => return Err(std::io::ErrorKind::InvalidInput.into()),
        };
        fs::write(directory.join(OUTPUT), output)
    });
    match performed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            warren_log::say(&error.to_string());
            ExitCode::FAILURE
        }
    }
}

/// Relaxes a grid whose edge stays as it is.
fn ocean(input: &[u8]) -> Vec<u8> {
    let mut grid: Vec<f64> = input.iter().map(|&byte| f64::from(byte)).collect();
    grid.resize(GRID * GRID, 0.0);
    let mut next = grid.clone();
    for _ in 0..SWEEPS {
        for row in 1..GRID - 1 {
            for at in row * GRID + 1..(row + 1) * GRID - 1 {
                let around = grid[at - 1] + grid[at + 1] + grid[at - GRID] + grid[at + GRID];
                next[at] = around / 4.0;
            }
        }
        std::mem::swap(&mut grid, &mut next);
    }
    grid.iter().flat_map(|value| value.to_le_bytes()).collect()
}

/// Draws spheres, seen along parallel rays.
fn raytrace(input: &[u8]) -> Vec<u8> {
    let number = |at: usize| f64::from(input.get(at).copied().unwrap_or_default()) / 255.0;
    let sphere = |at: usize| {
        let [x, y, z] = [number(7 * at), number(11 * at), number(13 * at) + 1.0];
        ([x, y, z], 0.05 + number(17 * at) / 10.0)
    };
    let spheres: Vec<_> = (0..SPHERES).map(sphere).collect();
    let mut image = Vec::with_capacity(PIXELS * PIXELS);
    for row in 0..PIXELS {
        for column in 0..PIXELS {
            let mut light = 0.0;
            for ray in 0..RAYS * RAYS {
                let part = |at: usize| (at as f64 + 0.5) / RAYS as f64;
                let x = (column as f64 + part(ray % RAYS)) / PIXELS as f64;
                let y = (row as f64 + part(ray / RAYS)) / PIXELS as f64;
                light += seen(&spheres, x, y);
            }
            image.push((light / (RAYS * RAYS) as f64 * 255.0) as u8);
        }
    }
    image
}

/// The light of the nearest sphere that a ray meets.
fn seen(spheres: &[([f64; 3], f64)], x: f64, y: f64) -> f64 {
    let mut nearest = (f64::INFINITY, 0.0);
    for ([centre_x, centre_y, centre_z], radius) in spheres {
        let (dx, dy) = (x - centre_x, y - centre_y);
        let height = radius * radius - dx * dx - dy * dy;
        let depth = centre_z - height.max(0.0).sqrt();
        if height > 0.0 && depth < nearest.0 {
            nearest = (depth, height.sqrt() / radius);
        }
    }
    nearest.1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_programs_write_something_that_depends_on_the_input() {
        let input: Vec<u8> = (0..GRID * GRID).map(|at| (at % 256) as u8).collect();
        let image = raytrace(&input);
        assert_eq!(image.len(), PIXELS * PIXELS);
        assert!(image.iter().any(|&light| light > 0) && image != raytrace(&[]));
    }
}
