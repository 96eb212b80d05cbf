;;;; Sessions that are resumed, in TLS 1.3 and 1.2: only where a full handshake would succeed now.

(in-package #:clgrpc.tests.loop)

(defconstant +no-check-time+ #x200000
  "X509_V_FLAG_NO_CHECK_TIME: a full handshake takes certificates that are over, as if it had been
made in time.")

(defun credentials-context (credentials role)
  (clgrpc.loop::with-context (context credentials role)
    (clgrpc.loop::context-pointer context)))

(defun limit-version (credentials version)
  "Let a client with CREDENTIALS speak at most VERSION of TLS. Return CREDENTIALS."
  (os::ssl-ctx-ctrl (credentials-context credentials :client) 124 (if (= version 12) #x0303 #x0304)
                    0)
  credentials)

(defun ignore-dates (credentials role)
  "Let full handshakes of CREDENTIALS accept expired certificates. Return CREDENTIALS."
  (os::x509-store-set-flags (os::ssl-ctx-get-cert-store (credentials-context credentials role))
                            +no-check-time+)
  credentials)

(defun tickets-of (credentials)
  (clgrpc.loop::with-context (context credentials :client)
    (clgrpc.loop::context-tickets context)))

(defun move-ticket (credentials from to)
  "Let a client with CREDENTIALS use the ticket of the server FROM for the server TO."
  (let ((tickets (tickets-of credentials)))
    (flet ((key (name) (format nil "~A at memory" name)))
      (is-true (gethash (key from) tickets) "there is no ticket of ~A" from)
      (setf (gethash (key to) tickets) (shiftf (gethash (key from) tickets) nil))
      (remhash (key from) tickets))))

(defun meet (server client &optional (name "localhost"))
  "Shake hands. Two values: :resumed, :full, or the reason of the server's refusal; and the end of
the ticket that it has given, a universal time."
  (with-still-loops (ours theirs)
    (with-ends ((one ours server :server)
                (other theirs client :client :name name))
      (if (shake-ends other one)
          (let ((resumed (list (security-resumed-p (byte-channel-security (end-byte-channel one)))
                               (security-resumed-p
                                (byte-channel-security (end-byte-channel other))))))
            (is (eq (first resumed) (second resumed)))
            (values (if (first resumed) :resumed :full)
                    (os::ticket-end (os::ssl-get-session (clgrpc.loop::tls-ssl (end-tls one))))))
          (byte-channel-failure (end-byte-channel one))))))

(defun with-both-versions (function)
  (dolist (version '(13 12)) (funcall function version)))

(defun client-with-certificate (version &optional (name "client"))
  (limit-version (client-credentials :certificate (certificate-file (format nil "~A.pem" name))
                                     :key (certificate-file (format nil "~A.key" name)))
                 version))

(defun elsewhere-credentials (roots)
  (tls-credentials :certificate (certificate-file "elsewhere.pem")
                   :key (certificate-file "elsewhere.key")
                   :roots roots :client-certificates :require :check-seconds nil))

(test resumption-under-the-same-name
  (with-both-versions
    (lambda (version)
      (let ((server (server-credentials :roots (certificate-file "ca.pem")
                                        :others (list (elsewhere-credentials
                                                       (certificate-file "ca.pem")))))
            (client (client-with-certificate version)))
        (dolist (name '("localhost" "elsewhere.example"))
          (is (equal '(:full :resumed :resumed)
                     (loop repeat 3 collect (meet server client name)))))))))

(test resumption-under-another-name
  ;; localhost trusts the client's authority, elsewhere.example another one
  (with-both-versions
    (lambda (version)
      (let ((server (server-credentials
                     :roots (certificate-file "ca.pem")
                     :others (list (elsewhere-credentials (certificate-file "stranger.pem")))))
            (client (client-with-certificate version)))
        (is (search "certificate verify failed" (meet server client "elsewhere.example")))
        (is (eq :full (meet server client "localhost")))
        (move-ticket client "localhost" "elsewhere.example")
        (is (search "certificate verify failed" (meet server client "elsewhere.example")))
        ;; even if both names trust the authority: the session belongs to one name
        (let ((server (server-credentials
                       :roots (certificate-file "ca.pem")
                       :others (list (elsewhere-credentials (certificate-file "ca.pem")))))
              (client (client-with-certificate version)))
          (is (eq :full (meet server client "elsewhere.example")))
          (move-ticket client "elsewhere.example" "localhost")
          (is (eq :full (meet server client "localhost"))))))))

(test resumption-after-an-authority-is-gone
  ;; the authority is removed from the server's own roots, or from those of another name
  (with-both-versions
    (lambda (version)
      (dolist (name '("localhost" "elsewhere.example"))
        (uiop:with-temporary-file (:pathname roots)
          (uiop:copy-file (certificate-file "ca.pem") roots)
          (let* ((other (elsewhere-credentials roots))
                 (server (server-credentials :roots roots :check-seconds nil :others (list other)))
                 (client (client-with-certificate version)))
            (is (eq :full (meet server client name)))
            (uiop:copy-file (certificate-file "stranger.pem") roots)
            (is (eq :resumed (meet server client name)))
            (reload-credentials (if (string= name "localhost") server other))
            (is (search "certificate verify failed" (meet server client name)))))))))

(test resumption-when-the-client-is-over
  (with-both-versions
    (lambda (version)
      (let ((server (ignore-dates (server-credentials :roots (certificate-file "ca.pem")) :server))
            (client (client-with-certificate version "expired")))
        (is (eq :full (meet server client)))
        (is (eq :full (meet server client)))))))

(test resumption-when-the-server-is-over
  (with-both-versions
    (lambda (version)
      (let ((server (tls-credentials :certificate (certificate-file "expired.pem")
                                     :key (certificate-file "expired.key")))
            (client (ignore-dates (limit-version (client-credentials) version) :client)))
        (is (eq :full (meet server client)))
        (is (eq :full (meet server client)))))))

(test resumption-as-long-as-each-certificate-of-the-chain
  (with-still-loops (ours theirs)
    (with-ends ((one ours (tls-credentials :certificate (certificate-file "chain.pem")
                                           :key (certificate-file "chain.key"))
                     :server)
                (other theirs (client-credentials) :client))
      (is-true (shake-ends other one))
      (flet ((end (name)
               (os:certificate-not-after
                (os:first-certificate (uiop:read-file-string (certificate-file name)) name))))
        (is (<= (1- (min (end "chain.pem") (end "ca.pem")))
                (os:session-end (clgrpc.loop::tls-ssl (end-tls other)))
                (min (end "chain.pem") (end "ca.pem"))))
        (is (null (os:session-end (clgrpc.loop::tls-ssl (end-tls one)))))))))

(test resumption-hands-the-end-on
  ;; a resumed session gives another ticket, which expires with the first
  (let ((server (server-credentials)) (client (client-credentials)))
    (flet ((until ()
             (clgrpc.loop::ticket-until (gethash "localhost at memory" (tickets-of client)))))
      (is (eq :full (meet server client)))
      (let ((first (until)))
        (is (eq :resumed (meet server client)))
        (is (= first (until))))))
  (with-both-versions
    (lambda (version)
      (let* ((server (server-credentials :roots (certificate-file "ca.pem")))
             (client (client-with-certificate version))
             (end (nth-value 1 (meet server client))))
        (is-true end)
        (dotimes (i 2)
          (multiple-value-bind (manner again) (meet server client)
            (is (eq :resumed manner))
            (is (= end again))))))))

(test resumption-with-other-credentials
  ;; a client's tickets belong to its roots and to whether it verifies
  (let* ((server (server-credentials))
         (careless (client-credentials :verify nil))
         (client (client-credentials)))
    (is (eq :full (meet server careless)))
    (is (eq :resumed (meet server careless)))
    (is (eq :full (meet server client)))
    (reload-credentials client)
    (is (eq :full (meet server client)))))
