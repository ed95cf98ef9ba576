//! `cattlegrid top`: what a server does, live, in a terminal.
//!
//! [`source`] asks the server from a thread of its own; [`model`] keeps what it has said and works out rates;
//! [`pages`] and [`sections`] make tables of that, which [`view`] draws and `--once` prints; [`ui`] is what
//! the keys do, [`screen`] the terminal.

#![expect(
    clippy::cast_precision_loss,
    clippy::cast_sign_loss,
    reason = "a screen shows a few digits of numbers, and those that are cast are not negative; what is exact is text"
)]

mod figures;
mod hot;
mod model;
mod pages;
mod reply;
mod screen;
mod sections;
mod source;
mod table;
mod ui;
mod view;

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel, sync_channel};
use std::thread;
use std::time::Duration;

use cattlegrid_config::{TOP_VIEWS, TopCommand};

use hot::KeySketches;
use model::{Model, ServerUpdate};
use pages::{View, printed};
use reply::StatsRequest;
use screen::{Screen, ScreenEvent};
use source::{PollSettings, Poller, StatsTarget, look, millis_now, run, run_hot, words};
use ui::{KeyAction, Ui};

/// How long a key may wait for its effect: what is new is looked for as often.
const TICK: Duration = Duration::from_millis(50);
/// Without anything new the screen is drawn this often, since it says how long things last.
const REDRAW_MS: u64 = 1000;
/// Replies that wait to be taken.
const WAITING: usize = 64;

/// Shows the server until a key or a signal ends it, or with `--once` returns the text to print.
///
/// # Errors
/// There is no terminal, it has gone, or the server gives no answer to `--once`.
pub(crate) fn top(command: &TopCommand) -> Result<Option<String>, String> {
    let target = Arc::new(StatsTarget::new(command)?);
    let place = command.view.and_then(|name| TOP_VIEWS.iter().position(|own| *own == name));
    let view = place.map(|place| View::ALL[place]);
    if command.once {
        return once(command, &target, view).map(Some);
    }
    if !screen::is_terminal() {
        return Err("standard output is no terminal; --once prints what there is as text".to_owned());
    }
    let paint = screen::paint(command.ascii, |name| std::env::var(name).ok())?;
    let interval_ms = command.interval.as_millis() as u64;
    let mut live =
        LiveView::start(&target, &command.address, Ui::new(view.unwrap_or(View::Main), interval_ms));
    let mut screen = Screen::take().map_err(|error| format!("the terminal: {error}"))?;
    live.show(&mut screen, paint).map_err(|error| format!("the terminal: {error}"))?;
    Ok(None)
}

/// The pages as text, from one look at the server.
fn once(command: &TopCommand, target: &Arc<StatsTarget>, view: Option<View>) -> Result<String, String> {
    let mut model = Model::new(&command.address);
    let failed = |error: io::Error| format!("{}: {}", command.address, words(&error));
    let mut poller = Poller::new(Arc::clone(target));
    let interval_ms = command.interval.as_millis() as u64;
    let all: &'static [StatsRequest] = &StatsRequest::ALL;
    let order = |asks| PollSettings { interval_ms, paused: false, asks };
    poller.poll(&order(all), |update| model.take(update)).map_err(failed)?;
    // Control keys, now that it is known whether there are any.
    poller
        .poll(&order(&[StatsRequest::Slow, StatsRequest::Nodes]), |update| model.take(update))
        .map_err(failed)?;
    if view == Some(View::Keys) {
        let (_wanted, never) = channel();
        let mut is_on = true;
        model.take(match look(target, &mut KeySketches::new(), &never, &mut is_on) {
            Ok(update) => update,
            Err(error) => ServerUpdate::Unwatched(words(&error)),
        });
    }
    Ok(printed(&model, view))
}

/// The threads that ask, and what is shown of their answers.
struct LiveView {
    model: Model,
    ui: Ui,
    updates: Receiver<ServerUpdate>,
    orders: Sender<PollSettings>,
    watches: Sender<bool>,
}

impl LiveView {
    fn start(target: &Arc<StatsTarget>, address: &str, ui: Ui) -> Self {
        let (sender, updates) = sync_channel(WAITING);
        let (orders, ordered) = channel();
        let (watches, on_or_off) = channel();
        let poller = Poller::new(Arc::clone(target));
        let live = Self { model: Model::new(address), ui, updates, orders, watches };
        let order = live.order();
        let to_screen = sender.clone();
        thread::spawn(move || run(poller, order, &ordered, &to_screen));
        let target = Arc::clone(target);
        thread::spawn(move || run_hot(&target, &on_or_off, &sender));
        live.ask();
        live
    }

    fn order(&self) -> PollSettings {
        PollSettings { interval_ms: self.ui.interval_ms, paused: self.ui.paused, asks: self.ui.view.asks() }
    }

    /// Says what is wanted. The threads only end with the program.
    fn ask(&self) {
        self.orders.send(self.order()).unwrap_or_default();
        self.watches.send(self.ui.view == View::Keys && !self.ui.paused).unwrap_or_default();
    }

    fn show(&mut self, screen: &mut Screen, paint: view::ScreenStyle) -> io::Result<()> {
        let mut drawn_ms = 0;
        loop {
            let mut is_new = false;
            while let Ok(update) = self.updates.try_recv() {
                // A reply is part of a look, which ends with another update.
                is_new |= !matches!(update, ServerUpdate::Reply { .. });
                self.model.take(update);
            }
            let now_ms = millis_now();
            if is_new || drawn_ms == 0 || now_ms - drawn_ms >= REDRAW_MS {
                screen.draw(|frame| view::draw(frame, &self.model, &mut self.ui, paint, now_ms))?;
                drawn_ms = now_ms;
            }
            let does = match screen.input(TICK)? {
                ScreenEvent::Nothing => continue,
                ScreenEvent::Ended => return Ok(()),
                ScreenEvent::Resized => KeyAction::Draw,
                ScreenEvent::Stopped => KeyAction::Stop,
                ScreenEvent::GoesOn => KeyAction::Redraw,
                ScreenEvent::Key(key) => self.ui.press(key),
            };
            match does {
                KeyAction::Draw => {}
                KeyAction::Ask => self.ask(),
                KeyAction::Quit => return Ok(()),
                KeyAction::Stop => screen.stop()?,
                KeyAction::Redraw => screen.redraw()?,
            }
            drawn_ms = 0;
        }
    }
}
