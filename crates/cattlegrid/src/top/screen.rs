//! The terminal: taken over, given back, and its keys.
//!
//! # Invariants
//! * The terminal is given back whatever ends the program: a key, a signal, an error, a panic. It ends with
//!   its terminal. Only SIGKILL, SIGABRT and faults of the processor leave it as it is.

use std::io::{self, IsTerminal as _, Stdout, Write as _};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use ratatui::Terminal;
use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::{Hide, Show};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{
    Clear, ClearType, EnterAlternateScreen, LeaveAlternateScreen, disable_raw_mode, enable_raw_mode,
};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use signal_hook::consts::{
    SIGALRM, SIGCONT, SIGHUP, SIGINT, SIGQUIT, SIGSTOP, SIGTERM, SIGTSTP, SIGUSR1, SIGUSR2,
};
use signal_hook::flag;
use signal_hook::low_level::raise;

use super::figures::NumberStyle;
use super::ui::PressedKey;
use super::view::ScreenStyle;

/// The terminal has been taken over.
static IS_TAKEN: AtomicBool = AtomicBool::new(false);

/// The drawing abilities of the terminal, by the environment.
///
/// # Errors
/// The terminal cannot be drawn on; the text says what to do.
pub(super) fn paint(ascii: bool, variable: impl Fn(&str) -> Option<String>) -> Result<ScreenStyle, String> {
    let variable = |name: &str| variable(name).filter(|value| !value.is_empty());
    let term = variable("TERM").unwrap_or_default();
    if term.is_empty() || term == "dumb" || term == "unknown" {
        return Err(format!(
            "TERM={term}: this terminal cannot be drawn on; --once prints what there is as text"
        ));
    }
    // The first that is set counts, as everywhere.
    let locale =
        ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().find_map(variable).unwrap_or_default().to_lowercase();
    let is_utf8 = locale.contains("utf-8") || locale.contains("utf8");
    let is_mono = term.starts_with("vt") || term.ends_with("-m") || term.ends_with("-mono");
    Ok(ScreenStyle {
        hand: NumberStyle { exact: false, ascii: ascii || !is_utf8 },
        colours: variable("NO_COLOR").is_none() && !is_mono,
    })
}

/// Whether standard output is a terminal.
pub(super) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// A terminal that has been taken over, until it is dropped.
pub(super) struct Screen {
    terminal: Terminal<CrosstermBackend<Stdout>>,
    ends: Arc<AtomicBool>,
    stops: Arc<AtomicBool>,
    continued: Arc<AtomicBool>,
}

/// An event from the terminal or the system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScreenEvent {
    Key(PressedKey),
    Resized,
    /// A signal asks for the end.
    Ended,
    /// A signal asks to stop, as Ctrl-Z does.
    Stopped,
    /// The program goes on after it was stopped, and the terminal may be another's work.
    GoesOn,
    Nothing,
}

impl Screen {
    /// Takes the terminal over.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn take() -> io::Result<Self> {
        let signals = || Arc::new(AtomicBool::new(false));
        let (ends, stops, continued) = (signals(), signals(), signals());
        for signal in [SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGALRM] {
            flag::register(signal, Arc::clone(&ends))?;
        }
        flag::register(SIGTSTP, Arc::clone(&stops))?;
        flag::register(SIGCONT, Arc::clone(&continued))?;
        let before = std::panic::take_hook();
        cattlegrid_panic::print_with(move |panic| {
            give_back();
            before(panic);
        });
        end_with_terminal();
        enter()?;
        let terminal = Terminal::new(CrosstermBackend::new(io::stdout())).inspect_err(|_| give_back())?;
        Ok(Self { terminal, ends, stops, continued })
    }

    /// Draws.
    ///
    /// # Errors
    /// The system's: the terminal is gone.
    pub(super) fn draw(&mut self, draw: impl FnOnce(&mut ratatui::Frame<'_>)) -> io::Result<()> {
        self.terminal.draw(draw).map(|_| ())
    }

    /// Waits at most this long for the next event.
    ///
    /// # Errors
    /// The system's error: the terminal is gone.
    pub(super) fn input(&self, wait: Duration) -> io::Result<ScreenEvent> {
        if self.ends.load(Ordering::Relaxed) {
            return Ok(ScreenEvent::Ended);
        }
        if self.stops.swap(false, Ordering::Relaxed) {
            return Ok(ScreenEvent::Stopped);
        }
        if self.continued.swap(false, Ordering::Relaxed) {
            return Ok(ScreenEvent::GoesOn);
        }
        if !event::poll(wait)? {
            return Ok(ScreenEvent::Nothing);
        }
        Ok(match event::read()? {
            Event::Key(key) => key_of(key).map_or(ScreenEvent::Nothing, ScreenEvent::Key),
            Event::Resize(..) => ScreenEvent::Resized,
            _ => ScreenEvent::Nothing,
        })
    }

    /// Gives the terminal back and stops, until SIGCONT comes.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn stop(&mut self) -> io::Result<()> {
        give_back();
        raise(SIGSTOP)?;
        self.redraw()
    }

    /// Takes the terminal over again, and draws all of it the next time.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn redraw(&mut self) -> io::Result<()> {
        self.continued.store(false, Ordering::Relaxed);
        enter()?;
        // Not `Terminal::clear`, which asks the terminal where its cursor is and waits for the reply.
        execute!(io::stdout(), Clear(ClearType::All))?;
        self.terminal = Terminal::new(CrosstermBackend::new(io::stdout()))?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        give_back();
    }
}

/// Ends the program when the terminal goes away: its reads return at once, again and again, and nothing is
/// left to give back.
fn end_with_terminal() {
    thread::spawn(|| {
        let out = io::stdout();
        loop {
            let mut fds = [PollFd::new(&out, PollFlags::empty())];
            let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
            match poll(&mut fds, None) {
                Ok(_) if fds[0].revents().intersects(gone) => std::process::exit(1),
                Ok(_) | Err(Errno::INTR) => {}
                Err(_) => return,
            }
        }
    });
}

fn enter() -> io::Result<()> {
    enable_raw_mode()?;
    IS_TAKEN.store(true, Ordering::SeqCst);
    execute!(io::stdout(), EnterAlternateScreen, Hide).inspect_err(|_| give_back())
}

/// Gives the terminal back; again does nothing. What fails here has nobody to hear of it.
fn give_back() {
    if IS_TAKEN.swap(false, Ordering::SeqCst) {
        let mut out = io::stdout();
        execute!(out, LeaveAlternateScreen, Show).unwrap_or_default();
        out.flush().unwrap_or_default();
        disable_raw_mode().unwrap_or_default();
    }
}

fn key_of(key: KeyEvent) -> Option<PressedKey> {
    if key.kind == KeyEventKind::Release {
        return None;
    }
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => Some(PressedKey::Interrupt),
            KeyCode::Char('z') => Some(PressedKey::Stop),
            KeyCode::Char('l') => Some(PressedKey::Redraw),
            _ => None,
        };
    }
    Some(match key.code {
        KeyCode::Char(letter) => PressedKey::Char(letter),
        KeyCode::Enter => PressedKey::Enter,
        KeyCode::Esc => PressedKey::Esc,
        KeyCode::Backspace => PressedKey::Backspace,
        KeyCode::Tab => PressedKey::Tab,
        KeyCode::BackTab => PressedKey::BackTab,
        KeyCode::Left => PressedKey::Left,
        KeyCode::Right => PressedKey::Right,
        KeyCode::Up => PressedKey::Up,
        KeyCode::Down => PressedKey::Down,
        KeyCode::PageUp => PressedKey::PageUp,
        KeyCode::PageDown => PressedKey::PageDown,
        KeyCode::Home => PressedKey::Home,
        KeyCode::End => PressedKey::End,
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(ascii: bool, variables: &[(&str, &str)]) -> Result<(bool, bool), String> {
        let variable =
            |name: &str| variables.iter().find(|(own, _)| *own == name).map(|(_, value)| (*value).to_owned());
        paint(ascii, variable).map(|paint| (paint.hand.ascii, paint.colours))
    }

    #[test]
    fn the_environment_says_what_a_terminal_can() {
        let utf8 = ("LANG", "de_DE.UTF-8");
        assert_eq!(with(false, &[("TERM", "xterm-256color"), utf8]), Ok((false, true)));
        assert_eq!(with(true, &[("TERM", "xterm"), utf8]), Ok((true, true)));
        assert_eq!(with(false, &[("TERM", "xterm"), utf8, ("NO_COLOR", "1")]), Ok((false, false)));
        assert_eq!(with(false, &[("TERM", "xterm"), utf8, ("NO_COLOR", "")]), Ok((false, true)));
        assert_eq!(with(false, &[("TERM", "xterm"), utf8, ("LC_ALL", "C")]), Ok((true, true)));
        assert_eq!(with(false, &[("TERM", "xterm"), utf8, ("LC_ALL", "")]), Ok((false, true)));
        assert_eq!(with(false, &[("TERM", "vt100"), ("LC_CTYPE", "C.utf8")]), Ok((false, false)));
        assert_eq!(with(false, &[("TERM", "xterm")]), Ok((true, true)));
        for term in ["dumb", ""] {
            assert!(with(false, &[("TERM", term), utf8]).unwrap_err().contains("--once"));
        }
    }

    #[test]
    fn keys_of_terminals_are_ours() {
        let of = |code, modifiers| key_of(KeyEvent::new(code, modifiers));
        assert_eq!(of(KeyCode::Char('c'), KeyModifiers::CONTROL), Some(PressedKey::Interrupt));
        assert_eq!(of(KeyCode::Char('+'), KeyModifiers::SHIFT), Some(PressedKey::Char('+')));
        assert_eq!(of(KeyCode::F(1), KeyModifiers::NONE), None);
    }
}
