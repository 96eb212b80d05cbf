;;;; Targets: addresses to connect to or to listen on, as text, in the forms of gRPC's document
;;;; "Name Resolution".
;;;;
;;;;   HOST:PORT  [IPV6]:PORT       a name or a numeric address; the same as dns:, but that only
;;;;                                channels may be without a port
;;;;   dns:HOST[:PORT]              dns:///HOST[:PORT] as well; the port is 443 if none is given
;;;;   dns://SERVER[:PORT]/HOST[:PORT]   for channels: the DNS server at SERVER, a numeric address,
;;;;                                looks HOST up; its port is 53 if none is given
;;;;   ipv4:ADDRESS[:PORT],…        numeric addresses, to be tried in turn
;;;;   ipv6:[ADDRESS]:PORT,…
;;;;   unix:PATH                    unix:///PATH for an absolute one
;;;;   unix-abstract:NAME           a name of Linux that no file stands for
;;;;   passthrough:///HOST:PORT     as HOST:PORT, for targets made for grpc-go
;;;;
;;;; In all but the first form %XX represents an octet, as in URIs. This file looks no name up.
;;;; Other schemes may be registered (scheme.lisp).

(in-package #:clgrpc.loop)

(defstruct (target (:copier nil))
  "The place to which a client connects, or on which a server listens."
  (text "" :type string)                ; the target as it was given
  (addresses '() :type list)            ; kernel's form; empty if HOST must be looked up
  (server nil :type (or null octets))   ; the address of the DNS server to ask; nil: the system's
  (host "" :type string)                ; a name or numeric address
  (port 0 :type (unsigned-byte 16))     ; 0 of a unix socket
  (authority "" :type string))          ; the :authority of calls to this target

(declaim (sb-ext:freeze-type target))

(document-functions
  target-text "The text from which TARGET was parsed."
  target-addresses "The addresses of TARGET that are known without a look-up, as octets in the
kernel's form."
  target-server "The address of TARGET's DNS server, as octets in the kernel's form, or nil if
TARGET names no DNS server."
  target-port "The port of TARGET, which is 0 for a unix socket."
  target-host "The host of TARGET, a name or a numeric address; \"localhost\" for a unix socket."
  target-authority "The :authority that gRPC sends to TARGET.")

(defmethod print-object ((target target) stream)
  (print-unreadable-object (target stream :type t)
    (write-string (target-text target) stream)))

(defconstant +default-port+ 443 "The port of targets with a scheme and without a port.")
(defconstant +dns-port+ 53 "The port of DNS servers.")

(defun no-target (text control &rest arguments)
  (misuse "~S is not an address: ~?." text control arguments))

;;; The parts of a target's text

(defun split-authority (text start)
  "Return two values for the part of TEXT that begins at START, after the scheme: the authority, and
the path with its slash. If the part does not begin with two slashes, return nil and the whole
part."
  (if (eql (mismatch "//" text :start2 start) 2)
      (let ((slash (position #\/ text :start (+ start 2))))
        (values (subseq text (+ start 2) slash) (subseq text (or slash (length text)))))
      (values nil (subseq text start))))

(defun decoded-octets (text path)
  "The octets of PATH, a part of TEXT, with each %XX decoded."
  (or (percent-decoded path)
      (no-target text "two hexadecimal digits follow a %")))

(defun decoded-string (text path)
  (handler-case (octets-string (decoded-octets text path))
    (invalid-utf8 () (no-target text "it is not UTF-8"))))

(defun parse-port (text port smallest)
  (let ((number (and (<= 1 (length port) 5)
                     (every (lambda (char) (char<= #\0 char #\9)) port)
                     (parse-integer port))))
    (unless (and number (<= smallest number 65535))
      (no-target text "a port is a number from ~D to 65535, not ~S" smallest port))
    number))

(defun split-port (text host-and-port smallest-port default)
  "Return two values for HOST-AND-PORT, a part of TEXT: the host, without brackets, and the port.
DEFAULT is the port if HOST-AND-PORT has none; if DEFAULT is nil, it must have a port."
  (let* ((bracket (and (plusp (length host-and-port)) (char= #\[ (char host-and-port 0))
                       (or (position #\] host-and-port)
                           (no-target text "a bracket is not closed"))))
         (colon (position #\: host-and-port :start (or bracket 0)))
         (end (if bracket (1+ bracket) colon))
         (second-colon (and colon (position #\: host-and-port :start (1+ colon)))))
    (cond ((and bracket (not (eql end (or colon (length host-and-port)))))
           (no-target text "after a bracket only a colon and the port may follow"))
          ((find #\, host-and-port)
           (no-target text "several addresses are written with a scheme, ~
                            ipv4:10.0.0.1:50051,10.0.0.2:50051; to listen, in a list"))
          ((and second-colon (not bracket))
           (if (and default (os:make-address host-and-port 0))
               (values host-and-port default) ; an IPv6 address alone
               (no-target text "an IPv6 address with a port must be in brackets: [::1]:50051")))
          ((or colon default)
           (values (subseq host-and-port (if bracket 1 0) (or bracket end))
                   (if colon
                       (parse-port text (subseq host-and-port (1+ colon)) smallest-port)
                       default)))
          (t (no-target text "give HOST:PORT, [IPV6]:PORT or unix:PATH")))))

;;; The schemes

(defun make-name-target (text authority host port)
  "Return the target of HOST, which may be numeric, and PORT."
  (when (string= host "") (no-target text "it has no host"))
  (make-target :text text :authority authority :host host :port port
               :addresses (values (os:resolve-host host port :lookup nil))))

(defun parse-bare-target (text smallest-port default-port)
  (multiple-value-bind (host port) (split-port text text smallest-port default-port)
    (make-name-target text text (if (and (string= host "") (zerop smallest-port)) "0.0.0.0" host)
                      port)))

(defun parse-name-target (text path smallest-port)
  (let ((name (decoded-string text (string-left-trim "/" path))))
    (multiple-value-bind (host port) (split-port text name smallest-port +default-port+)
      (make-name-target text name host port))))

(defun parse-numeric-target (text path smallest-port family)
  (let ((parts (or (uiop:split-string (decoded-string text (string-left-trim "/" path))
                                      :separator ",")
                   '(""))))
    (flet ((address (part)
             (multiple-value-bind (host port) (split-port text part smallest-port +default-port+)
               (let ((address (os:make-address host port)))
                 (unless (and address (= family (os:address-family address)))
                   (no-target text "~S is not an ~:[IPv6~;IPv4~] address" host
                              (= family os:+af-inet+)))
                 (values address host port)))))
      (multiple-value-bind (address host port) (address (first parts))
        (make-target :text text :authority (os:address-text address) :host host :port port
                     :addresses (mapcar #'address parts))))))

(defun parse-ipv4-target (text path smallest-port)
  (parse-numeric-target text path smallest-port os:+af-inet+))

(defun parse-ipv6-target (text path smallest-port)
  (parse-numeric-target text path smallest-port os:+af-inet6+))

(defun make-unix-target (text name &key abstract)
  (make-target :text text :authority "localhost" :host "localhost"
               :addresses (list (or (os:make-unix-address name :abstract abstract)
                                    (no-target text "the name of a unix socket has 1 to 107 ~
                                                         octets; in a path none of them is ~
                                                         NUL")))))

(defun parse-path-target (text path smallest-port)
  (declare (ignore smallest-port))
  (make-unix-target text (decoded-octets text path)))

(defun parse-abstract-target (text path smallest-port)
  (declare (ignore smallest-port))
  (make-unix-target text (decoded-octets text path) :abstract t))

(register-scheme "dns" :parse #'parse-name-target)
(register-scheme "passthrough" :parse #'parse-name-target)
(register-scheme "ipv4" :parse #'parse-ipv4-target)
(register-scheme "ipv6" :parse #'parse-ipv6-target)
(register-scheme "unix" :parse #'parse-path-target)
(register-scheme "unix-abstract" :parse #'parse-abstract-target)

(defparameter *absent-schemes* '(("etcd" "clgrpc-etcd/discovery"))
  "An alist from schemes that other ASDF systems define to these systems.")

(defun no-such-scheme (text)
  (let* ((name (string-downcase (subseq text 0 (position #\: text))))
         (system (second (find name *absent-schemes* :key #'first :test #'string=))))
    (cond (system
           (no-target text "the scheme ~A belongs to the system ~A, which is not loaded: ~
                            (asdf:load-system ~S)" name system system))
          ((member name '("http" "https" "grpc" "grpcs") :test #'string=)
           (no-target text "leave ~A:// out~@[; TLS needs :credentials, or --tls-ca of a command~]"
                      name (char= #\s (char name (1- (length name))))))
          (t (no-target text "there is no scheme ~A; use ~{~A~^, ~}, or no scheme"
                        name (scheme-names))))))

(defun parse-dns-server (text scheme authority for-channel)
  "Return the address of the DNS server that TEXT, whose scheme is SCHEME, has as its AUTHORITY, or
nil if AUTHORITY is nil. Signal MISUSE if AUTHORITY is not an address, or FOR-CHANNEL is false."
  (cond ((zerop (length authority)) nil)
        ((string/= "dns" (scheme-name scheme))
         (no-target text "nothing may stand between ~A:// and the next slash"
                    (scheme-name scheme)))
        ((not for-channel)
         (no-target text "only channels can name a DNS server; write dns:///HOST:PORT"))
        (t (multiple-value-bind (host port)
               (split-port text (decoded-string text authority) 1 +dns-port+)
             (or (os:make-address host port)
                 (no-target text "a DNS server has a numeric address, not ~S" host))))))

(defun refuse-user (text scheme)
  "Signal MISUSE if TEXT, an address with SCHEME or nil, names a user. TEXT is not shown, because it
may have a password."
  (when (and (find #\@ text)
             (or (null scheme)
                 (member (scheme-name scheme) '("dns" "ipv4" "ipv6" "passthrough")
                         :test #'string-equal)))
    (misuse "An address has no user and no password: write HOST:PORT, without an @.")))

(defun parse-target (text &key (smallest-port 1) for-channel)
  "Return the target that TEXT, a string, denotes (see the head of this file). SMALLEST-PORT is the
smallest valid port. If SMALLEST-PORT is 0, the target is for listening, and a missing host means
every IPv4 address. If FOR-CHANNEL is true, the target may name a DNS server and needs no port.
Signal MISUSE if TEXT is not an address. From any thread."
  (unless (stringp text)
    (misuse "An address is a string, not ~S~@[: ~A~]." text
            (typecase text
              (integer "the port is part of the address, HOST:PORT")
              (cons "write several addresses as one: ipv4:10.0.0.1:50051,10.0.0.2:50051")
              (standard-object "SERVER-ADDRESS returns a server's address"))))
  (when (find-if (lambda (char) (<= #xD800 (char-code char) #xDFFF)) text)
    (misuse "~A is not an address: it has a surrogate, which is no character."
            (printable-text text :quoted t)))
  (let ((scheme (find-scheme text))
        (colon (position #\: text)))
    (refuse-user text scheme)
    (cond (scheme
           (unless (scheme-parse scheme)
             (no-target text "~A: is the scheme of channels that have no socket of their own"
                        (scheme-name scheme)))
           (multiple-value-bind (authority path) (split-authority text (1+ colon))
             (let ((server (parse-dns-server text scheme authority for-channel))
                   (target (funcall (scheme-parse scheme) text path smallest-port)))
               (setf (target-server target) server)
               target)))
          ((and colon (eql (mismatch "://" text :start2 colon) 3)) (no-such-scheme text))
          (t (parse-bare-target text smallest-port (and for-channel +default-port+))))))

(defun address-name (text)
  "The name in TEXT, an address with a scheme: the part after the scheme and the optional authority,
without the slashes before it and with each %XX decoded. Signal MISUSE if the name is not text."
  (decoded-string text (string-left-trim
                        "/" (nth-value 1 (split-authority text (1+ (position #\: text)))))))
