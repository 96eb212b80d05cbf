;;;; Addresses. An address is the kernel's sockaddr as octets: struct sockaddr_in (16 octets),
;;;; sockaddr_in6 (28) or sockaddr_un, whose length depends on the name in it. An address as text is
;;;; "127.0.0.1:50051", "[::1]:50051", "unix:/run/x.sock" or "unix-abstract:x".

(in-package #:clgrpc.os)

(define-constants
  (+af-unspec+ "AF_UNSPEC" 0)
  (+af-unix+ "AF_UNIX" 1)
  (+af-inet+ "AF_INET" 2)
  (+af-inet6+ "AF_INET6" 10)
  (+sock-stream+ "SOCK_STREAM" 1)
  (+inet6-text-octets+ "INET6_ADDRSTRLEN" 46))

(defconstant +inet6-octets+ 28)
(defconstant +address-octets+ 110
  "The maximum length of an address in octets, that of struct sockaddr_un.")

(define-hot address-family ((address octets)) (unsigned-byte 16)
  "The family of ADDRESS, +AF-INET+, +AF-INET6+ or +AF-UNIX+."
  (logior (aref address 0) (ash (aref address 1) 8)))

(define-hot address-port ((address octets)) (unsigned-byte 16)
  "The port of ADDRESS, an internet address."
  (u16be address 2))

(defun text-to-number (family text octets at)
  "Write the numeric address in TEXT into OCTETS, beginning at AT; return true if TEXT is numeric."
  (with-pinned-objects (octets)
    (= 1 (alien-funcall (extern-alien "inet_pton" (function int int c-string system-area-pointer))
                        family text (sap+ (vector-sap octets) at)))))

(defun make-address (host port)
  "Return the address of HOST, a numeric IPv4 or IPv6 address as text (without brackets), and PORT.
Return NIL if HOST is not numeric."
  (declare (type string host) (type (unsigned-byte 16) port))
  (loop for (family length at) in `((,+af-inet+ 16 4) (,+af-inet6+ ,+inet6-octets+ 8))
        for octets = (make-octets length)
        do (when (text-to-number family host octets at)
             (setf (aref octets 0) family
                   (u16be octets 2) port)
             (return octets))))

(defun parse-address (text)
  "Split TEXT, \"HOST:PORT\" or \"[IPV6]:PORT\", into host, without brackets, and port. Signal
MISUSE for any other text. An empty host means every IPv4 address."
  (let* ((colon (position #\: text :from-end t))
         (port (and colon (ignore-errors (parse-integer text :start (1+ colon)))))
         (bracketed (and colon (plusp colon) (char= #\[ (char text 0))
                         (char= #\] (char text (1- colon)))))
         (host (and colon (if bracketed (subseq text 1 (1- colon)) (subseq text 0 colon)))))
    (unless (and (typep port '(unsigned-byte 16))
                 (or bracketed (not (find #\: host))))
      (misuse "~S is not an address of the form HOST:PORT or [IPV6]:PORT." text))
    (values (if (string= host "") "0.0.0.0" host) port)))

(defun number-to-text (family octets at)
  (let ((text (make-octets +inet6-text-octets+)))
    (with-pinned-objects (octets text)
      (alien-funcall (extern-alien "inet_ntop" (function system-area-pointer int system-area-pointer
                                                         system-area-pointer (unsigned 32)))
                     family (sap+ (vector-sap octets) at) (vector-sap text) +inet6-text-octets+))
    (octets-ascii text 0 (or (position 0 text) +inet6-text-octets+))))

(defun address-host (address)
  "The numeric address in ADDRESS, an internet address, as text."
  (let ((family (address-family address)))
    (number-to-text family address (if (= family +af-inet+) 4 8))))

(defun address-network (address)
  "Return the network that probably belongs to the owner of ADDRESS, an internet address, as text.
For IPv4 this is the address itself, even if it is mapped into IPv6 (RFC 4291 section 2.5.5). For
IPv6 this is the network of 64 bits that one subscriber has (RFC 6177), or the address itself if it
is valid on one link only."
  (flet ((prefix-p (&rest octets)
           (loop for octet in octets
                 for at from 8
                 always (= octet (aref address at)))))
    (cond ((= +af-inet+ (address-family address)) (address-host address))
          ((prefix-p 0 0 0 0 0 0 0 0 0 0 #xFF #xFF) (number-to-text +af-inet+ address 20))
          ((and (= #xFE (aref address 8)) (= #x80 (logand #xC0 (aref address 9))))
           (address-host address))
          (t (let ((network (copy-seq address)))
               (fill network 0 :start 16 :end 24)
               (format nil "~A/64" (address-host network)))))))

(defun address-text (address)
  "The text of ADDRESS."
  (let ((family (address-family address)))
    (cond ((= family +af-inet+)
           (format nil "~A:~D" (address-host address) (address-port address)))
          ((= family +af-inet6+)
           (format nil "[~A]:~D" (address-host address) (address-port address)))
          ((= family +af-unix+) (unix-address-text address))
          (t "unknown address"))))

;;; Unix sockets. The name of an abstract address, which has no file, begins with a NUL.

(defun make-unix-address (name &key abstract)
  "Return the address of the unix socket NAME, octets: a path or, if ABSTRACT, a name without a
file. Return NIL if NAME is empty or has more than 107 octets."
  (declare (type octets name))
  (when (and (<= 1 (length name) (- +address-octets+ 3))
             (or abstract (not (find 0 name))))
    (let ((address (make-octets (+ 3 (length name)))))
      (setf (aref address 0) +af-unix+)
      (replace address name :start1 (if abstract 3 2))
      address)))

(defun unix-address-name (address)
  "Return two values: the octets of the path or abstract name of ADDRESS, a unix socket's address;
and true if the name is abstract. Return NIL if ADDRESS has neither, like the addresses of most
clients."
  (cond ((<= (length address) 3) (values nil nil))
        ((zerop (aref address 2)) (values (subseq address 3) t))
        (t (values (subseq address 2 (position 0 address :start 2)) nil))))

(defun unix-address-text (address)
  (multiple-value-bind (name abstract) (unix-address-name address)
    (with-output-to-string (text)
      (write-string (if abstract "unix-abstract:" "unix:") text)
      (loop for octet across (or name (make-octets 0))
            do (if (and (< 32 octet 127) (/= octet #x25))
                   (write-char (code-char octet) text)
                   (format text "%~2,'0X" octet))))))

;;; Names. The offsets are those of glibc's struct addrinfo on 64-bit machines.

(define-constants
  (+ni-namereqd+ "NI_NAMEREQD" 8)
  (+eai-noname+ "EAI_NONAME" -2)
  (+eai-again+ "EAI_AGAIN" -3))
(defconstant +eai-nodata+ -5
  "EAI_NODATA, which <netdb.h> declares only with GNU's extensions.")

(defun copy-address-list (first)
  (loop for info = first then (sb-sys:sap-ref-sap info 40)
        until (zerop (sap-int info))
        for length = (sb-sys:sap-ref-32 info 16)
        for address = (sb-sys:sap-ref-sap info 24)
        when (<= 16 length +inet6-octets+)
          collect (let ((octets (make-octets length)))
                    (dotimes (i length octets)
                      (setf (aref octets i) (sb-sys:sap-ref-8 address i))))))

(defun query-resolver (host)
  "Ask the system's resolver, which may take long, for the addresses of HOST. Return a list of
addresses with port 0 and, after a failure, the reason as text."
  (with-alien ((hints (array (unsigned 64) 6)) (found (unsigned 64) 0))
    (dotimes (i 6) (setf (deref hints i) 0))
    (setf (deref hints 1) +sock-stream+) ; ai_socktype
    (let ((code (alien-funcall
                 (extern-alien "getaddrinfo"
                               (function int c-string system-area-pointer
                                         (* (array (unsigned 64) 6)) (* (unsigned 64))))
                 host (int-sap 0) (addr hints) (addr found))))
      (if (zerop code)
          (unwind-protect (values (copy-address-list (int-sap found)) nil)
            (alien-funcall (extern-alien "freeaddrinfo" (function void (unsigned 64))) found))
          (values '() (lookup-failure host code))))))

(defconstant +longest-host-name+ 1025
  "NI_MAXHOST, which <netdb.h> defines only if certain macros are set.")

(defun lookup-name (address)
  "Ask the system's resolver, which may take long, for the names of ADDRESS. Return two values, the
host's and the service's name. After a failure return three values: nil, nil and the reason, as
text."
  (declare (type octets address))
  (let ((host (make-octets +longest-host-name+)) (service (make-octets 64)))
    (with-pinned-objects (address host service)
      (let ((code (alien-funcall
                   (extern-alien "getnameinfo"
                                 (function int system-area-pointer (unsigned 32)
                                           system-area-pointer (unsigned 32)
                                           system-area-pointer (unsigned 32) int))
                   (vector-sap address) (length address) (vector-sap host) (length host)
                   (vector-sap service) (length service) +ni-namereqd+)))
        (if (zerop code)
            (flet ((text (octets) (decode-utf8 octets 0 (position 0 octets))))
              (values (text host) (text service) nil))
            (values nil nil (lookup-failure (address-host address) code)))))))

(defun lookup-failure (host code)
  "The reason, as text, for which getaddrinfo found no addresses of HOST; CODE is its result."
  (case code
    ((#.+eai-noname+ #.+eai-nodata+) (format nil "no such host ~A" host))
    (#.+eai-again+ (format nil "no name server answers for ~A" host))
    (t (format nil "~A (~A)" (alien-funcall (extern-alien "gai_strerror" (function c-string int))
                                            code)
               host))))

(defun resolve-host (host port &key (lookup t))
  "Return the addresses of HOST, a name or a numeric address, with PORT, in the order in which to
try them. Only names other than localhost need the system's resolver, whose answer may take long; it
is asked only if LOOKUP is true. The second value is the reason of a failed look-up, as text; the
third is true if a look-up would be needed."
  (let ((numeric (make-address host port)))
    (cond (numeric (values (list numeric) nil nil))
          ((string-equal host "localhost")
           (values (list (make-address "127.0.0.1" port) (make-address "::1" port)) nil nil))
          ((not lookup) (values '() nil t))
          (t (multiple-value-bind (addresses failure) (query-resolver host)
               (dolist (address addresses) (setf (u16be address 2) port))
               (values addresses failure t))))))

(defun interleave-families (addresses)
  "Return ADDRESSES in the order in which to try them. Addresses of the first address's family
alternate with other addresses, so that a family without connectivity causes only a short delay (RFC
8305 section 4)."
  (when addresses
    (let ((family (address-family (first addresses))))
      (flet ((first-family-p (address) (= family (address-family address))))
        (loop with ones = (remove-if-not #'first-family-p addresses)
              with others = (remove-if #'first-family-p addresses)
              while (or ones others)
              when ones collect (pop ones)
              when others collect (pop others))))))
