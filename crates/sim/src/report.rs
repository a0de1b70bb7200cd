//! One page about one or several runs of a workload: self-contained HTML with plots as SVG, readable without a network.

use crate::metrics::{Gantt, Heat, Outcome};
use plotters::coord::Shift;
use plotters::prelude::*;
use std::fmt::{self, Write};

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Plot = Result<(), Box<dyn std::error::Error>>;

const SIZE: (u32, u32) = (880, 300);
/// Distinguishable also for most colour-blind people (Okabe and Ito).
const COLOURS: [RGBColor; 8] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(230, 159, 0),
    RGBColor(86, 180, 233),
    RGBColor(0, 0, 0),
    RGBColor(148, 148, 148),
];

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}\
    h1{font-size:1.5rem}h2{font-size:1.1rem;margin-top:2rem}table{border-collapse:collapse;font-variant-numeric:\
    tabular-nums}td,th{padding:.25rem .7rem;text-align:right;border-bottom:1px solid #ddd}td:first-child,th:first-child\
    {text-align:left}svg{max-width:100%;height:auto}p.note{color:#555}";

/// A line of a plot: its name and its points.
type Line = (String, Vec<(f64, f64)>);

/// The page. `notes` say what the workload lacks and how the gaps were filled; `command` made the runs.
///
/// # Errors
/// When a plot cannot be drawn, which would be a defect.
pub fn html(title: &str, command: &str, notes: &[String], runs: &[Outcome]) -> Result<String, String> {
    let mut page = String::new();
    write_page(&mut page, title, command, notes, runs).map_err(|error| error.to_string())?;
    Ok(page)
}

fn write_page(page: &mut String, title: &str, command: &str, notes: &[String], runs: &[Outcome]) -> Plot {
    let title = escape(title);
    write!(
        page,
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>{title}</title><style>{STYLE}</style>"
    )?;
    write!(page, "<h1>{title}</h1><p><code>{}</code></p>", escape(command))?;
    table(page, runs)?;
    for note in notes {
        write!(page, "<p class=\"note\">{}</p>", escape(note))?;
    }
    section(page, "Job completion: share of jobs that took at most so many seconds", &|area| {
        lines(area, "seconds", "share of jobs", &completion_curves(runs))
    })?;
    section(page, "Task wait: share of tasks that waited at most so many seconds", &|area| {
        lines(area, "seconds", "share of tasks", &wait_curves(runs))
    })?;
    section(page, "CPU in use over time", &|area| lines(area, "seconds", "share of the CPUs", &cpu_lines(runs)))?;
    section(page, "Fairness over time (Jain's index in windows of 60 s)", &|area| {
        lines(area, "seconds", "index", &jain_lines(runs))
    })?;
    for run in runs {
        let name = escape(&run.results.preset);
        section(page, &format!("Nodes over time under {name}: the darker, the busier"), &|area| heat(area, &run.heat))?;
        if let Some(gantt) = run.gantt.as_ref().filter(|gantt| gantt.stages.len() > 1) {
            let heading = format!("The stages of {} under {name}", escape(&gantt.job));
            section(page, &heading, &|area| bars(area, gantt))?;
        }
    }
    Ok(page.write_str("</html>\n")?)
}

fn table(page: &mut String, runs: &[Outcome]) -> fmt::Result {
    let heads = [
        "preset",
        "JCT mean, s",
        "p50",
        "p95",
        "wait mean, s",
        "p95",
        "makespan, s",
        "Jain",
        "CPU",
        "memory",
        "events",
        "wall, s",
    ];
    page.write_str("<table><tr>")?;
    heads.iter().try_for_each(|head| write!(page, "<th>{head}</th>"))?;
    for run in runs {
        let results = &run.results;
        write!(page, "</tr><tr><td>{}</td>", escape(&results.preset))?;
        let seconds = [
            results.jct_s.mean,
            results.jct_s.p50,
            results.jct_s.p95,
            results.task_wait_s.mean,
            results.task_wait_s.p95,
            results.makespan_s,
        ];
        seconds.iter().try_for_each(|value| write!(page, "<td>{value:.1}</td>"))?;
        let jain = results.jain.mean.map_or_else(|| "-".to_owned(), |mean| format!("{mean:.3}"));
        write!(page, "<td>{jain}</td>")?;
        write!(page, "<td>{:.1} %</td>", results.utilization.cpu * 100.0)?;
        write!(page, "<td>{:.1} %</td>", results.utilization.memory * 100.0)?;
        write!(page, "<td>{}</td><td>{:.2}</td>", results.events, results.wall_seconds)?;
    }
    page.write_str("</tr></table>")?;
    let Some(reference) = runs.first().and_then(|run| run.results.reference) else { return Ok(()) };
    write!(
        page,
        "<p>No scheduler beats a makespan of {:.1} s and a mean completion of {:.1} s. A greedy one that knows all run \
         times, on one machine as large as all nodes together, reaches {:.1} s and {:.1} s.</p>",
        reference.critical_path_s.max(reference.work_over_capacity_s),
        reference.srpt_mean_jct_s,
        reference.greedy_makespan_s,
        reference.greedy_mean_jct_s
    )
}

fn section(page: &mut String, heading: &str, draw: &dyn Fn(&Area<'_>) -> Plot) -> Plot {
    write!(page, "<h2>{heading}</h2>")?;
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        draw(&area)?;
        area.present()?;
    }
    Ok(page.write_str(&svg)?)
}

// ---- what is plotted -----------------------------------------------------------------------------------------------

fn completion_curves(runs: &[Outcome]) -> Vec<Line> {
    let of_run = |run: &Outcome| {
        let mut times: Vec<f64> = run.jobs.iter().filter_map(|job| job.jct_s).collect();
        times.sort_by(f64::total_cmp);
        let count = times.len() as f64;
        // At most as many points as can be seen.
        let step = times.len().div_ceil(400).max(1);
        let points = times.iter().enumerate().filter(|(rank, _)| (rank + 1) % step == 0 || rank + 1 == times.len());
        points.map(|(rank, time)| (*time, (rank + 1) as f64 / count)).collect()
    };
    runs.iter().map(|run| (run.results.preset.clone(), of_run(run))).collect()
}

fn wait_curves(runs: &[Outcome]) -> Vec<Line> {
    let of_run = |run: &Outcome| {
        let last = run.wait_curve.len().saturating_sub(1).max(1) as f64;
        run.wait_curve.iter().enumerate().map(|(rank, wait)| (*wait, rank as f64 / last)).collect()
    };
    runs.iter().map(|run| (run.results.preset.clone(), of_run(run))).collect()
}

fn cpu_lines(runs: &[Outcome]) -> Vec<Line> {
    let of_run = |run: &Outcome| run.windows.iter().map(|window| (window.begins_s, window.cpu)).collect();
    runs.iter().map(|run| (run.results.preset.clone(), of_run(run))).collect()
}

fn jain_lines(runs: &[Outcome]) -> Vec<Line> {
    let of_run = |run: &Outcome| {
        let known = run.windows.iter().filter_map(|window| Some((window.begins_s, window.jain?)));
        known.collect()
    };
    runs.iter().map(|run| (run.results.preset.clone(), of_run(run))).collect()
}

// ---- drawing -------------------------------------------------------------------------------------------------------

fn lines(area: &Area<'_>, x_name: &str, y_name: &str, lines: &[Line]) -> Plot {
    let longest = lines.iter().flat_map(|(_, points)| points).map(|point| point.0).fold(0.0, f64::max);
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(55)
        .build_cartesian_2d(0.0..longest.max(1e-3), 0.0..1.05)?;
    chart.configure_mesh().light_line_style(TRANSPARENT).x_desc(x_name).y_desc(y_name).draw()?;
    for (number, (name, points)) in lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        chart
            .draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(2)))?
            .label(name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour.stroke_width(2)));
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::LowerRight)
        .background_style(WHITE.mix(0.8))
        .border_style(BLACK.mix(0.2))
        .draw()?;
    Ok(())
}

fn heat(area: &Area<'_>, heat: &Heat) -> Plot {
    /// More columns than this cannot be seen.
    const COLUMNS: usize = 200;
    let windows = heat.rows.iter().map(Vec::len).max().unwrap_or(0);
    let together = windows.div_ceil(COLUMNS).max(1);
    let columns = windows.div_ceil(together);
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(55)
        .build_cartesian_2d(0.0..windows.max(1) as f64, 0.0..heat.rows.len().max(1) as f64)?;
    let nodes_in_row = heat.nodes_in_row as f64;
    chart
        .configure_mesh()
        .disable_mesh()
        .x_desc("minutes")
        .y_desc("node")
        .y_label_formatter(&|row| format!("{:.0}", row * nodes_in_row))
        .draw()?;
    let cells = heat.rows.iter().enumerate().flat_map(|(row, means)| {
        (0..columns).filter_map(move |column| {
            let part = means.get(column * together..((column + 1) * together).min(means.len()))?;
            let busy = f64::from(part.iter().sum::<f32>()) / part.len().max(1) as f64;
            let (left, right) = ((column * together) as f64, ((column + 1) * together).min(means.len()) as f64);
            let colour = COLOURS[0].mix(busy.clamp(0.0, 1.0));
            // An idle cell needs no paint.
            (busy > 0.004).then(|| Rectangle::new([(left, row as f64), (right, row as f64 + 1.0)], colour.filled()))
        })
    });
    chart.draw_series(cells)?;
    Ok(())
}

fn bars(area: &Area<'_>, gantt: &Gantt) -> Plot {
    let begins = gantt.stages.iter().map(|stage| stage.begins_s).fold(f64::INFINITY, f64::min);
    let ends = gantt.stages.iter().map(|stage| stage.ends_s).fold(begins, f64::max);
    let count = gantt.stages.len() as f64;
    let mut chart = ChartBuilder::on(area)
        .margin(10)
        .x_label_area_size(40)
        .y_label_area_size(55)
        .build_cartesian_2d(0.0..(ends - begins).max(1e-3), 0.0..count)?;
    chart.configure_mesh().disable_mesh().x_desc("seconds since its first task").y_desc("stage").draw()?;
    let bar = |(number, stage): (usize, &crate::metrics::GanttStage)| {
        let top = count - number as f64;
        let corners = [(stage.begins_s - begins, top - 0.9), (stage.ends_s - begins, top - 0.1)];
        Rectangle::new(corners, COLOURS[number % COLOURS.len()].mix(0.8).filled())
    };
    chart.draw_series(gantt.stages.iter().enumerate().map(bar))?;
    Ok(())
}

fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
