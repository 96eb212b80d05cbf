;;;; Endpoints: what one can connect to or listen on, as text, in the forms of gRPC's document "Name
;;;; Resolution".
;;;;
;;;;   HOST:PORT  [IPV6]:PORT       a name or a numeric address; the same as dns:
;;;;   dns:HOST[:PORT]              dns:///HOST[:PORT] as well; the port is 443 if none is given
;;;;   ipv4:ADDRESS[:PORT],…        numeric addresses, to be tried in turn
;;;;   ipv6:[ADDRESS]:PORT,…
;;;;   unix:PATH                    unix:///PATH for an absolute one
;;;;   unix-abstract:NAME           a name of Linux that no file stands for
;;;;   passthrough:///HOST:PORT     as HOST:PORT, for targets made for grpc-go
;;;;
;;;; In all but the first form %XX stands for an octet, as in URIs. Nothing is looked up here.

(in-package #:clgrpc.loop)

(defstruct (endpoint (:copier nil))
  "TEXT as it was given. ADDRESSES, those of the kernel, if they are known; else HOST is a name to look
up, for PORT. AUTHORITY is what HTTP/2's :authority is for this endpoint."
  (text "" :type string)
  (addresses '() :type list)
  (host "" :type string)
  (port 0 :type (unsigned-byte 16))
  (authority "" :type string))

(declaim (sb-ext:freeze-type endpoint))

(document-functions
  endpoint-text "The text that ENDPOINT was parsed from."
  endpoint-host "The host of ENDPOINT, a name or a numeric address; of a unix socket \"localhost\"."
  endpoint-authority "What gRPC sends as :authority to ENDPOINT.")

(defmethod print-object ((endpoint endpoint) stream)
  (print-unreadable-object (endpoint stream :type t)
    (write-string (endpoint-text endpoint) stream)))

(defconstant +default-port+ 443 "That of endpoints with a scheme and without a port.")

(defun no-endpoint (text control &rest arguments)
  (misuse "~S is no address: ~?." text control arguments))

;;; The parts of a text

(defparameter *endpoint-parsers*
  '(("dns" . parse-name-endpoint) ("passthrough" . parse-name-endpoint)
    ("ipv4" . parse-numeric-endpoint) ("ipv6" . parse-numeric-endpoint)
    ("unix" . parse-path-endpoint) ("unix-abstract" . parse-abstract-endpoint))
  "An alist from scheme to a function (text scheme path smallest-port).")

(defun split-scheme (text)
  "The scheme of TEXT, or nil if it has none that we know, and the position behind its colon."
  (let* ((colon (position #\: text))
         (scheme (and colon (string-downcase (subseq text 0 colon)))))
    (cond ((null colon) (values nil 0))
          ((assoc scheme *endpoint-parsers* :test #'string=) (values scheme (1+ colon)))
          ((eql (mismatch "://" text :start2 colon) 3)
           (no-endpoint text "there is no scheme ~A; there are ~{~A~^, ~}, or none at all" scheme
                        (mapcar #'car *endpoint-parsers*)))
          (t (values nil 0)))))

(defun split-authority (text start)
  "The authority and the path, its slash included, of what follows a scheme in TEXT; nil and all of it
if that does not begin with two slashes."
  (if (eql (mismatch "//" text :start2 start) 2)
      (let ((slash (position #\/ text :start (+ start 2))))
        (values (subseq text (+ start 2) slash) (subseq text (or slash (length text)))))
      (values nil (subseq text start))))

(defun decode-percents (text path)
  "The octets of PATH, a part of TEXT, with each %XX decoded."
  (let ((octets (string-octets path))
        (decoded (make-buffer :size 64)))
    (flet ((digit (at)
             (or (and (< at (length octets)) (digit-char-p (code-char (aref octets at)) 16))
                 (no-endpoint text "two hexadecimal digits follow a %"))))
      (loop with at = 0
            while (< at (length octets))
            do (let ((escaped (= #x25 (aref octets at))))
                 (append-octet decoded (if escaped
                                           (+ (* 16 (digit (1+ at))) (digit (+ at 2)))
                                           (aref octets at)))
                 (incf at (if escaped 3 1)))))
    (subseq (buffer-octets decoded) (buffer-start decoded) (buffer-end decoded))))

(defun decoded-string (text path)
  (handler-case (octets-string (decode-percents text path))
    (invalid-utf8 () (no-endpoint text "it is not UTF-8"))))

(defun parse-port (text port smallest)
  (let ((number (and (<= 1 (length port) 5)
                     (every (lambda (char) (char<= #\0 char #\9)) port)
                     (parse-integer port))))
    (unless (and number (<= smallest number 65535))
      (no-endpoint text "a port is a number from ~D to 65535, not ~S" smallest port))
    number))

(defun split-port (text host-and-port smallest-port default)
  "The host, without brackets, and the port of HOST-AND-PORT, a part of TEXT. DEFAULT is the port if
there is none; or nil, if one must be given."
  (let* ((bracket (and (plusp (length host-and-port)) (char= #\[ (char host-and-port 0))
                       (or (position #\] host-and-port)
                           (no-endpoint text "a bracket is not closed"))))
         (colon (position #\: host-and-port :start (or bracket 0)))
         (end (if bracket (1+ bracket) colon))
         (second-colon (and colon (position #\: host-and-port :start (1+ colon)))))
    (cond ((and bracket (not (eql end (or colon (length host-and-port)))))
           (no-endpoint text "after a bracket comes a colon and the port"))
          ((and second-colon (not bracket))
           (if (and default (os:make-address host-and-port 0))
               (values host-and-port default) ; an IPv6 address alone
               (no-endpoint text "an IPv6 address with a port stands in brackets: [::1]:50051")))
          ((or colon default)
           (values (subseq host-and-port (if bracket 1 0) (or bracket end))
                   (if colon
                       (parse-port text (subseq host-and-port (1+ colon)) smallest-port)
                       default)))
          (t (no-endpoint text "give HOST:PORT, [IPV6]:PORT or unix:PATH")))))

;;; The schemes

(defun make-name-endpoint (text authority host port)
  "The endpoint of HOST, which may turn out to be numeric, and PORT."
  (when (string= host "") (no-endpoint text "it has no host"))
  (make-endpoint :text text :authority authority :host host :port port
                 :addresses (values (os:resolve-host host port :look-up nil))))

(defun parse-bare-endpoint (text smallest-port)
  (multiple-value-bind (host port) (split-port text text smallest-port nil)
    (make-name-endpoint text text (if (and (string= host "") (zerop smallest-port)) "0.0.0.0" host)
                        port)))

(defun parse-name-endpoint (text scheme path smallest-port)
  (declare (ignore scheme))
  (let ((name (decoded-string text (string-left-trim "/" path))))
    (multiple-value-bind (host port) (split-port text name smallest-port +default-port+)
      (make-name-endpoint text name host port))))

(defun parse-numeric-endpoint (text scheme path smallest-port)
  (let ((family (if (string= scheme "ipv4") os:+af-inet+ os:+af-inet6+))
        (parts (or (uiop:split-string (decoded-string text (string-left-trim "/" path))
                                      :separator ",")
                   '(""))))
    (flet ((address (part)
             (multiple-value-bind (host port) (split-port text part smallest-port +default-port+)
               (let ((address (os:make-address host port)))
                 (unless (and address (= family (os:address-family address)))
                   (no-endpoint text "~S is no ~:[IPv6~;IPv4~] address" host
                                (= family os:+af-inet+)))
                 (values address host port)))))
      (multiple-value-bind (address host port) (address (first parts))
        (make-endpoint :text text :authority (os:address-text address) :host host :port port
                       :addresses (mapcar #'address parts))))))

(defun make-unix-endpoint (text name &key abstract)
  (make-endpoint :text text :authority "localhost" :host "localhost"
                 :addresses (list (or (os:make-unix-address name :abstract abstract)
                                      (no-endpoint text "the name of a unix socket has 1 to 107 ~
                                                         octets, none of them NUL in a path")))))

(defun parse-path-endpoint (text scheme path smallest-port)
  (declare (ignore scheme smallest-port))
  (make-unix-endpoint text (decode-percents text path)))

(defun parse-abstract-endpoint (text scheme path smallest-port)
  (declare (ignore scheme smallest-port))
  (make-unix-endpoint text (decode-percents text path) :abstract t))

(defun parse-endpoint (text &key (smallest-port 1))
  "The endpoint that TEXT, a string, means; see above. Ports are from SMALLEST-PORT on: 0 is for
listening, and then no host means every IPv4 address. Signal MISUSE if it means none. From any thread."
  (unless (stringp text) (misuse "An address is a string, not ~S." text))
  (multiple-value-bind (scheme start) (split-scheme text)
    (if (null scheme)
        (parse-bare-endpoint text smallest-port)
        (multiple-value-bind (authority path) (split-authority text start)
          (when (plusp (length authority))
            (if (string= scheme "dns")
                (no-endpoint text "only the system's resolver is asked, no DNS server of one's ~
                                   choice; write dns:///HOST:PORT")
                (no-endpoint text "between ~A:// and the next slash nothing is expected" scheme)))
          (funcall (cdr (assoc scheme *endpoint-parsers* :test #'string=))
                   text scheme path smallest-port)))))
