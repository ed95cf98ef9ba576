//! Certificates: whether the server can use them, and for how long.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use cattlegrid_config::{Settings, TlsSettings};
use cattlegrid_server::tls::{TlsAcceptor, Validity, is_first_of, served, validities};

use super::finding::Findings;

const DAY: i64 = 86_400;
/// Days before its end from which on a certificate is worth a word.
const SOON_DAYS: i64 = 30;

/// Judges all certificate files that the settings name. `now`: Unix time in seconds.
pub(crate) fn judge(settings: &Settings, now: i64, to: &mut Findings) {
    let admin = settings.admin_tls.as_ref();
    for tls in settings.tls.iter().chain(admin.filter(|_| settings.tls.is_none())) {
        judge_server(tls, now, to);
    }
    for log in settings.follows() {
        let own = log.ssl_own.as_ref().map(|(certificate, _)| certificate);
        for path in log.ssl_ca.iter().chain(own) {
            judge_file(&format!("[follow.{}]", log.name), path, now, to);
        }
    }
}

/// Judges the certificate that a running server shows to clients: it may differ from the file. `address`: the
/// server's TLS address.
pub(crate) fn judge_served(settings: &Settings, address: SocketAddr, now: i64, to: &mut Findings) {
    let Some(tls) = &settings.tls else { return };
    let name = format!("the certificate that {address} shows");
    let Ok(der) = served(address, PATIENCE) else {
        to.unseen("certificate", format!("{name}: no TLS is spoken there; give the options of the server"));
        return;
    };
    if let Some(validity) = Validity::of(&der) {
        judge_one(&name, &tls.chain_cert, validity, now, to);
    }
    if is_first_of(&tls.chain_cert, &der).is_ok_and(|is_same| !is_same) {
        to.advice(
            "certificate",
            format!("{name} is not that of ssl_chain_cert {}", tls.chain_cert.display()),
            "The server has not read the file since it was written: clients get the old one.",
            "send the server SIGHUP, or `refresh_certs` by a client",
        );
    }
}

/// For how long a server may be silent.
const PATIENCE: Duration = Duration::from_secs(3);

fn judge_server(tls: &TlsSettings, now: i64, to: &mut Findings) {
    let mut all = [Some(&tls.chain_cert), tls.key.as_ref(), tls.ca_cert.as_ref()].into_iter().flatten();
    if all.any(|path| cattlegrid_config::open_file(path).is_err()) {
        // Said of the files.
        return;
    }
    if let Err(error) = TlsAcceptor::new(tls) {
        let why = "The server does not start.";
        let mend = "files that fit: certificate and key of one pair, PEM; `openssl x509 -noout -text -in FILE` shows a certificate";
        to.problem("certificate", error.to_string(), why, mend);
        return;
    }
    judge_file("ssl_chain_cert", &tls.chain_cert, now, to);
    if let Some(path) = &tls.ca_cert {
        judge_file("ssl_ca_cert", path, now, to);
    }
    let first = validities("ssl_chain_cert", &tls.chain_cert).ok().and_then(|all| all.first().copied());
    if first.is_some_and(|first| !first.has_names) {
        to.advice(
            "certificate",
            format!("ssl_chain_cert {} has no subjectAltName", tls.chain_cert.display()),
            "Clients that compare the name of the server with its certificate refuse it.",
            "a certificate with the names of the server: openssl req … -addext subjectAltName=DNS:cache.example",
        );
    }
}

fn judge_file(option: &str, path: &Path, now: i64, to: &mut Findings) {
    match validities(option, path) {
        Err(error) => {
            let mend = "a file with certificates in PEM that this user can read";
            to.problem("certificate", error.to_string(), "What needs it does not work.", mend);
        }
        Ok(all) => {
            for (number, validity) in all.iter().enumerate() {
                let name = match all.len() {
                    1 => format!("{option} {}", path.display()),
                    count => format!("{option} {} (certificate {} of {count})", path.display(), number + 1),
                };
                judge_one(&name, path, *validity, now, to);
            }
        }
    }
}

fn judge_one(name: &str, path: &Path, validity: Validity, now: i64, to: &mut Findings) {
    let Validity { from, until, .. } = validity;
    let renew = format!(
        "renew it, write it to {}, and send the server SIGHUP (or `refresh_certs`): connections go on",
        path.display()
    );
    let days = |seconds: i64| match seconds / DAY {
        0 => "less than a day".to_owned(),
        1 => "1 day".to_owned(),
        days => format!("{days} days"),
    };
    if until < now {
        let why = "Clients that verify it refuse the connection.";
        to.problem("certificate", format!("{name} expired {} ago", days(now - until)), why, renew);
    } else if from > now {
        to.problem(
            "certificate",
            format!("{name} is valid only in {}", days(from - now)),
            "Clients that verify it refuse the connection until then.",
            "set the clock of this machine (timedatectl), or a certificate that is valid",
        );
    } else if until - now < SOON_DAYS * DAY {
        let why = "From then on clients that verify it refuse the connection.";
        to.advice("certificate", format!("{name} expires in {}", days(until - now)), why, renew);
    } else {
        to.passed("certificate", format!("{name}: valid for {}", days(until - now)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_life_of_a_certificate() {
        let validity = Validity { from: 100 * DAY, until: 190 * DAY, has_names: true };
        let said = |now| {
            let mut to = Findings::default();
            judge_one("c", Path::new("/c.pem"), validity, now, &mut to);
            (
                to.is_good(),
                to.list.pop().map(|finding| finding.found),
                to.passed.pop().map(|(_, found)| found),
            )
        };
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(said(100 * DAY - 1), (false, some("c is valid only in less than a day"), None));
        assert_eq!(said(100 * DAY), (true, None, some("c: valid for 90 days")));
        assert_eq!(said(160 * DAY), (true, None, some("c: valid for 30 days")));
        assert_eq!(said(160 * DAY + 1), (true, some("c expires in 29 days"), None));
        assert_eq!(said(190 * DAY), (true, some("c expires in less than a day"), None));
        assert_eq!(said(190 * DAY + 1), (false, some("c expired less than a day ago"), None));
        assert_eq!(said(200 * DAY), (false, some("c expired 10 days ago"), None));
    }
}
