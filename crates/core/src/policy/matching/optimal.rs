//! The matching of minimum cost: the maximum number of pairs, and among these matchings the minimum sum. Shortest
//! augmenting paths with potentials (Kuhn 1955, Jonker and Volgenant 1987), in time proportional to tasks * nodes * the
//! smaller of both.

use super::{Costs, Pair, UNSUITABLE};

/// Larger than every cost and every sum of costs.
const NEVER: i64 = i64::MAX;
/// No row or no column.
const NONE: usize = usize::MAX;
/// Used instead of a column for a row that stays alone.
const ALONE: usize = usize::MAX - 1;

/// The pairs, ordered by task. Costs above 2^60 microseconds divided by the number of tasks or nodes, which is
/// centuries, count as that limit.
pub fn optimal(costs: &Costs) -> Vec<Pair> {
    // Rows are the smaller side: each gets one column of the larger side.
    let is_turned = costs.tasks() > costs.nodes();
    let (few, many) = if is_turned { (costs.nodes(), costs.tasks()) } else { (costs.tasks(), costs.nodes()) };
    let mut search = Search::new(few, many, |row, column| {
        let (task, node) = if is_turned { (column, row) } else { (row, column) };
        Some(costs.row(task)[node]).filter(|cost| *cost != UNSUITABLE).map(|cost| cost.0)
    });
    search.take_what_is_free();
    (0..few).for_each(|row| search.find_room(row));
    let matched = search.column_of.iter().enumerate().filter(|(_, column)| **column < many);
    let pair = |(row, &column)| if is_turned { Pair::new(column, row) } else { Pair::new(row, column) };
    let mut pairs: Vec<Pair> = matched.map(pair).collect();
    pairs.sort_unstable();
    pairs
}

/// Matches rows with columns. A row may also stay alone, which costs more than all pairs in total.
struct Search {
    columns: usize,
    costs: Vec<i64>,
    alone: i64,
    column_of: Vec<usize>,
    row_of: Vec<usize>,
    /// The potentials: no pair costs less than the sum of its two, and pairs found so far cost exactly that.
    of_rows: Vec<i64>,
    of_columns: Vec<i64>,
    /// In the search for one path: the cost of reaching a column, and the row before it.
    distances: Vec<i64>,
    reached_from: Vec<usize>,
    is_done: Vec<bool>,
    /// Columns ordered by distance.
    done: Vec<usize>,
}

/// A row that has been reached, and the cost of reaching it.
#[derive(Clone, Copy)]
struct Reached {
    row: usize,
    distance: i64,
}

/// The end of a path, and its cost.
struct End {
    row: usize,
    column: usize,
    distance: i64,
}

impl Search {
    fn new(rows: usize, columns: usize, cost: impl Fn(usize, usize) -> Option<u64>) -> Search {
        let most = (1i64 << 60) / (columns as i64 + 1);
        let cell = |cell: usize| match cost(cell / columns, cell % columns) {
            Some(cost) => i64::try_from(cost).unwrap_or(most).min(most),
            None => NEVER,
        };
        let costs: Vec<i64> = (0..rows * columns).map(cell).collect();
        let dearest = costs.iter().copied().filter(|cost| *cost != NEVER).max().unwrap_or(0);
        Search {
            columns,
            costs,
            alone: (dearest + 1) * (rows as i64 + 1),
            column_of: vec![NONE; rows],
            row_of: vec![NONE; columns],
            of_rows: vec![0; rows],
            of_columns: vec![0; columns],
            distances: vec![NEVER; columns],
            reached_from: vec![NONE; columns],
            is_done: vec![false; columns],
            done: Vec::with_capacity(rows),
        }
    }

    fn row(&self, row: usize) -> &[i64] {
        &self.costs[row * self.columns..][..self.columns]
    }

    /// Rows whose best column is free take it: no path is shorter.
    fn take_what_is_free(&mut self) {
        for row in 0..self.column_of.len() {
            let costs = self.row(row).iter().enumerate();
            let best = costs.map(|(column, &cost)| (cost, column)).min();
            let (cost, column) = best.filter(|(cost, _)| *cost != NEVER).unwrap_or((self.alone, ALONE));
            self.of_rows[row] = cost;
            if column == ALONE {
                self.column_of[row] = ALONE;
            } else if self.row_of[column] == NONE {
                self.take(row, column);
            }
        }
    }

    /// Gives the row a column, moving other rows to other columns, at the minimum cost; or one of them stays alone.
    fn find_room(&mut self, row: usize) {
        if self.column_of[row] != NONE {
            return;
        }
        let end = self.shortest_path(row);
        self.of_rows[row] += end.distance;
        for &column in &self.done {
            let nearer = end.distance - self.distances[column];
            self.of_columns[column] -= nearer;
            self.of_rows[self.row_of[column]] += nearer;
        }
        // Backwards along the path, each row takes the column of the next one.
        let (mut taker, mut column) = (end.row, end.column);
        loop {
            let had = self.column_of[taker];
            self.take(taker, column);
            if taker == row {
                break;
            }
            (taker, column) = (self.reached_from[had], had);
        }
    }

    fn take(&mut self, row: usize, column: usize) {
        self.column_of[row] = column;
        if column != ALONE {
            self.row_of[column] = row;
        }
    }

    /// Dijkstra's algorithm on the reduced costs: a pair's cost minus its potentials.
    fn shortest_path(&mut self, row: usize) -> End {
        self.distances.fill(NEVER);
        self.is_done.fill(false);
        self.done.clear();
        let mut at = Reached { row, distance: 0 };
        let mut alone = End { row, column: ALONE, distance: NEVER };
        loop {
            let distance = at.distance + self.alone - self.of_rows[at.row];
            if distance < alone.distance {
                alone = End { row: at.row, column: ALONE, distance };
            }
            let nearest = self.look_from(at);
            let Some((distance, column)) = nearest.filter(|(distance, _)| *distance < alone.distance) else {
                return alone;
            };
            let holder = self.row_of[column];
            if holder == NONE {
                return End { row: self.reached_from[column], column, distance };
            }
            self.is_done[column] = true;
            self.done.push(column);
            at = Reached { row: holder, distance };
        }
    }

    /// Updates distances with the paths through this row. Returns the nearest column that is not done.
    fn look_from(&mut self, at: Reached) -> Option<(i64, usize)> {
        let costs = &self.costs[at.row * self.columns..][..self.columns];
        let base = at.distance - self.of_rows[at.row];
        let mut nearest = (NEVER, 0);
        for (column, &cost) in costs.iter().enumerate() {
            if self.is_done[column] {
                continue;
            }
            if cost != NEVER {
                let distance = base + cost - self.of_columns[column];
                if distance < self.distances[column] {
                    self.distances[column] = distance;
                    self.reached_from[column] = at.row;
                }
            }
            if self.distances[column] < nearest.0 {
                nearest = (self.distances[column], column);
            }
        }
        (nearest.0 != NEVER).then_some(nearest)
    }
}

#[cfg(test)]
mod tests {
    use super::super::greedy;
    use super::super::tests::{check, each_small, figure_5, is_maximal, random};
    use super::*;
    use crate::vocabulary::{Chance, Duration};

    /// The maximum number of pairs from this task on, and their minimum cost.
    fn by_trying_all(costs: &Costs, task: usize, taken: &mut [bool]) -> (usize, u128) {
        if task == costs.tasks() {
            return (0, 0);
        }
        let mut best = by_trying_all(costs, task + 1, taken);
        for node in 0..costs.nodes() {
            let cost = costs.row(task)[node];
            if cost == UNSUITABLE || std::mem::replace(&mut taken[node], true) {
                continue;
            }
            let (pairs, sum) = by_trying_all(costs, task + 1, taken);
            taken[node] = false;
            let with = (pairs + 1, sum + u128::from(cost.0));
            if with.0 > best.0 || with.0 == best.0 && with.1 < best.1 {
                best = with;
            }
        }
        best
    }

    #[test]
    fn no_other_matching_has_more_pairs_or_a_lower_cost() {
        each_small(|costs| {
            // Costs of centuries are all equal.
            let mut bounded = costs.clone();
            for task in 0..costs.tasks() {
                let finite = bounded.row_mut(task).iter_mut().filter(|cost| **cost != UNSUITABLE);
                finite.for_each(|cost| *cost = (*cost).min(Duration(1 << 50)));
            }
            let pairs = optimal(&bounded);
            check(&bounded, &pairs);
            assert!(is_maximal(&bounded, &pairs));
            let least = by_trying_all(&bounded, 0, &mut vec![false; bounded.nodes()]);
            assert_eq!((pairs.len(), bounded.total(&pairs)), least, "{bounded:?}");
        });
    }

    #[test]
    fn unbounded_costs_are_matched_too() {
        each_small(|costs| check(costs, &optimal(costs)));
    }

    #[test]
    fn larger_batches_cost_no_more_than_greedy_and_no_exchange_is_cheaper() {
        for (seed, (tasks, nodes)) in (0..).zip([(60, 60), (40, 90), (90, 40), (70, 71)]) {
            let costs = random(&mut Chance::new(seed, "matching"), tasks, nodes, 1_000_000, 3);
            let pairs = optimal(&costs);
            check(&costs, &pairs);
            let by_greedy = greedy(&costs);
            assert!(pairs.len() >= by_greedy.len());
            assert!(pairs.len() > by_greedy.len() || costs.total(&pairs) <= costs.total(&by_greedy));
            for one in &pairs {
                for other in &pairs {
                    let swapped = [(one.task, other.node), (other.task, one.node)];
                    let swapped = swapped.map(|(task, node)| costs.of(Pair { task, node }));
                    if !swapped.contains(&UNSUITABLE) {
                        assert!(costs.of(*one) + costs.of(*other) <= swapped[0] + swapped[1]);
                    }
                }
            }
        }
    }

    #[test]
    fn the_papers_example_is_matched_at_minimum_cost() {
        assert_eq!(figure_5().total(&optimal(&figure_5())), 6 + 6 + 10);
    }
}
