;;;; Access to the console: by default only programs on this machine may open it, and only with the
;;;; token. The address that CONSOLE-URL returns contains the token; the answer moves it into a
;;;; cookie, so that no later address contains it. A program sends the token as `authorization:
;;;; Bearer TOKEN`.
;;;;
;;;; A page of another site cannot read the console: its scripts have no cookie to send (SameSite).
;;;; If an attacker makes the name of a site resolve to this machine (DNS rebinding), requests have
;;;; that name as their host, and are refused.

(in-package #:clgrpc.console)

(defun secrets-equal-p (secret given)
  "True if GIVEN, a string that a peer has sent, is SECRET. The time of this comparison reveals only
the length of GIVEN."
  (let ((difference (logxor (length secret) (length given))))
    (loop for i below (length given)
          do (setf difference
                   (logior difference
                           (logxor (char-code (char given i))
                                   (char-code (char secret (mod i (length secret))))))))
    (zerop difference)))

(defun host-part (text)
  "The host in TEXT, an address or the value of a Host header: the part before the port, without
brackets."
  (let ((close (position #\] text)))
    (cond ((and close
                (char= #\[ (char text 0))
                (or (= (1+ close) (length text)) (char= #\: (char text (1+ close)))))
           (subseq text 1 close))
          ((= 1 (count #\: text)) (subseq text 0 (position #\: text)))
          (t text))))

(defun digits-and-dots-p (text)
  (and (plusp (length text))
       (every (lambda (char) (or (digit-char-p char) (char= #\. char))) text)))

(defun loopback-host-p (host)
  "True if HOST, a name or an address, is this machine."
  (or (string-equal host "localhost")
      (uiop:string-suffix-p (string-downcase host) ".localhost")
      (string= host "::1")
      (let ((address (if (uiop:string-prefix-p "::ffff:" host) (subseq host 7) host)))
        (and (uiop:string-prefix-p "127." address) (digits-and-dots-p address)))))

(defun loopback-address-p (address)
  "True if ADDRESS, of a connection or of a listener, a string or nil, is one that only this machine
reaches. From any thread."
  (or (null address)
      (uiop:string-prefix-p "unix" address)
      (loopback-host-p (host-part address))))

(defun cookie-name (console)
  "The name of CONSOLE's cookie. Each console has a name of its own, because cookies do not
distinguish ports."
  (format nil "clgrpc-console-~A" (console-name console)))

(defun find-cookie (name header)
  "The value of the cookie NAME in HEADER, the value of a header `cookie`, or nil if HEADER does not
contain it. Nothing is copied before the cookie is found, because a peer without the token can
repeat a long header at the cost of an octet or two."
  (let ((pair (concatenate 'string name "=")) (header (coerce header 'simple-string)) (start 0))
    (declare (type simple-string header) (type index start))
    (loop
      (let* ((end (or (char-position #\; header :start start) (length header)))
             (at (loop for i of-type index from start below end
                       while (char= #\Space (schar header i))
                       finally (return i)))
             (after (+ at (length pair))))
        (declare (type index end at after))
        (when (and (<= after end) (string= pair header :start2 at :end2 after))
          (return (string-right-trim " " (subseq header after end))))
        (when (= end (length header)) (return nil))
        (setf start (1+ end))))))

(defun cookie-value (request name)
  "The value of the cookie NAME of REQUEST, or nil if REQUEST has no such cookie."
  (loop for (header . value) in (exchange:http-request-headers request)
          thereis (and (string= "cookie" header) (find-cookie name value))))

(defun bearer-token (request)
  "The token in the authorization header of REQUEST, or nil if that header contains none."
  (let ((value (exchange:http-request-header request "authorization")) (scheme "Bearer "))
    (and value
         (< (length scheme) (length value))
         (string-equal scheme value :end2 (length scheme))
         (subseq value (length scheme)))))

(defun token-place (console request)
  "The place of CONSOLE's token in REQUEST: :address if the address contains the token; :header if
only a cookie or the authorization has it; nil if REQUEST lacks the token. If CONSOLE has no token,
return :header."
  (let ((token (console-token console)))
    (flet ((right-p (given) (and given (secrets-equal-p token given))))
      (cond ((null token) :header)
            ((or (right-p (cookie-value request (cookie-name console)))
                 (right-p (bearer-token request)))
             (if (exchange:http-request-parameter request "token") :address :header))
            ((right-p (exchange:http-request-parameter request "token")) :address)))))

(defun host-allowed-p (console request)
  "True if REQUEST names an allowed host: any host if CONSOLE is remote, else only a name or address
of this machine."
  (or (console-remote-p console)
      (loopback-host-p (host-part (or (exchange:http-request-header request "host") "")))))

(defun peer-allowed-p (console peer)
  "True if PEER, the address of a connection, may use CONSOLE, provided that it has the token."
  (or (console-remote-p console) (loopback-address-p peer)))

;;; Answers

(defun safe-headers (type &rest more)
  "The headers, an alist, of an answer whose media type is TYPE; the entries MORE are added."
  (list* (cons "content-type" type)
         '("cache-control" . "no-store")
         '("x-content-type-options" . "nosniff")
         '("referrer-policy" . "no-referrer")
         '("cross-origin-resource-policy" . "same-origin")
         more))

(defun refuse (http-status text &rest more)
  "Answer with HTTP-STATUS and TEXT, and with the further headers MORE."
  (values http-status
          (apply #'safe-headers "text/plain; charset=utf-8" more)
          (format nil "~A~%" text)))

(defun move-token (console request)
  "Answer REQUEST, which has the token of CONSOLE in its address: move it into a cookie."
  (values 303
          (safe-headers "text/plain; charset=utf-8"
                        (cons "location" (console-path console))
                        ;; Lax: a browser that follows a link to the console sends the cookie
                        (cons "set-cookie"
                              (format nil "~A=~A; Path=~A; HttpOnly; SameSite=Lax~:[~;; Secure~]"
                                      (cookie-name console) (console-token console)
                                      (console-path console)
                                      (exchange:http-request-secure-p request))))
          nil))

(defun call-if-allowed (console request function)
  "If REQUEST has access to CONSOLE, call FUNCTION, which answers REQUEST; else refuse REQUEST."
  (cond ((not (peer-allowed-p console (exchange:http-request-peer request)))
         (refuse 403 "This console is for the machine it runs on."))
        ((not (host-allowed-p console request))
         (refuse 403 "This console is for the machine on which it runs: use 127.0.0.1."))
        (t (ecase (token-place console request)
             (:header (funcall function))
             (:address (move-token console request))
             ((nil) (refuse 401 "The console needs its token: open the address that contains it."
                            '("www-authenticate" . "Bearer realm=\"clgrpc console\"")))))))
