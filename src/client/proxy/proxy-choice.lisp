;;;; The choice of the proxy for a channel's connections (gRFC A1). The channel's user names the
;;;; proxy, or the channel takes it from the environment variables that gRPC and most other clients
;;;; read: the first of grpc_proxy, https_proxy, HTTPS_PROXY and http_proxy that is set, unless
;;;; no_grpc_proxy, no_proxy or NO_PROXY excepts the host. The proxy looks the host up; the channel
;;;; connects to the proxy only (tunnel.lisp).

(in-package #:clgrpc.proxy)

(defstruct (proxy (:copier nil))
  "A proxy for the connections of a channel, and their destination."
  (kind :http :type (member :http :socks5)) ; how to talk with the proxy: by CONNECT, or by RFC 1928
  (target nil :type loop:target)        ; the proxy's address
  (user nil :type (or null string))     ; our name at the proxy, or nil
  (password "" :type string)            ; the password of USER
  (host "" :type string)                ; the host of the channel's target, without brackets
  (port 0 :type (unsigned-byte 16)))    ; the port of the channel's target

(declaim (sb-ext:freeze-type proxy))

(document-functions
  proxy-target "The address of PROXY, a target for the loop.")

(defmethod print-object ((proxy proxy) stream) ; never its password
  (print-unreadable-object (proxy stream :type t)
    (format stream "~(~A~) ~A for ~A" (proxy-kind proxy) (loop:target-text (proxy-target proxy))
            (proxy-destination proxy))))

(defun proxy-destination (proxy)
  "The destination of PROXY's connections, as text: HOST:PORT, with brackets around an IPv6
address."
  (host-and-port (proxy-host proxy) (proxy-port proxy)))

(defun proxy-key (proxy)
  "The key by which channels through PROXY share connections, compared by EQUAL."
  (list (proxy-kind proxy) (loop:target-text (proxy-target proxy)) (proxy-user proxy)
        (proxy-password proxy) (proxy-destination proxy)))

;;; URLs of proxies

(defparameter *proxy-schemes*
  '(("http" :http 80) ("socks5" :socks5 1080) ("socks5h" :socks5 1080))
  "The schemes of URLs of proxies, each with the protocol and the default port.")

(defconstant +longest-socks-text+ 255
  "The maximum number of octets of each text that SOCKS5 sends (RFC 1928, 1929).")

(defun parse-proxy (url origin host port)
  "The PROXY to HOST and PORT with URL, of the form http://[USER:PASSWORD@]HOST[:PORT] or with
socks5:// instead. Signal MISUSE, which names ORIGIN and no password, if URL is not valid."
  (flet ((refuse (control &rest arguments)
           (misuse "~A is not a proxy, ~?: a proxy has the form http://[USER:PASSWORD@]HOST:PORT, ~
                    or socks5:// instead of http://." origin control arguments))
         (decoded (text)
           (and text (percent-decoded-text text))))
    (multiple-value-bind (its-host its-port path scheme secret) (split-url url)
      (declare (ignore path))
      (unless its-host (refuse "since it has no host, or an impossible port"))
      (destructuring-bind (&optional kind default-port)
          (rest (assoc (or scheme "http") *proxy-schemes* :test #'string=))
        (unless kind (refuse "since its scheme is ~A" scheme))
        (let* ((colon (and secret (position #\: secret)))
               (user (decoded (and secret (subseq secret 0 colon))))
               (password (decoded (if colon (subseq secret (1+ colon)) ""))))
          (when (or (and secret (null user)) (null password))
            (refuse "since no two hexadecimal digits follow a % in its user or password"))
          (when (and (eq :socks5 kind)
                     (some (lambda (text) (< +longest-socks-text+ (length (string-octets text))))
                           (list host (or user "") password)))
            (misuse "~A cannot be used: SOCKS5 allows at most ~D octets each for the host, ~
                     the user and the password." origin +longest-socks-text+))
          (make-proxy :kind kind :host host :port port :user user :password password
                      :target (loop:parse-target
                               (host-and-port its-host (or its-port default-port)))))))))

(defun port-given-p (address)
  "True if ADDRESS, HOST or HOST:PORT, has a port."
  (let ((colon (position #\: address :from-end t))
        (bracket (position #\] address)))
    (and colon (or (null bracket) (< bracket colon)))))

;;; Hosts without a proxy

(defun host-number (host)
  "HOST, a numeric address, as an integer, and its number of bits; nil if HOST is a name."
  (let ((address (os:make-address host 0)))
    (when address
      (destructuring-bind (start end)
          (if (= os:+af-inet+ (os:address-family address)) '(4 8) '(8 24))
        (values (reduce (lambda (number octet) (+ (* 256 number) octet))
                        address :start start :end end)
                (* 8 (- end start)))))))

(defun same-address-p (host other)
  "True if HOST and OTHER are the same numeric address, of the same family."
  (equal (multiple-value-list (host-number host)) (multiple-value-list (host-number other))))

(defun in-network-p (host network)
  "True if HOST, a numeric address, is in NETWORK, of the form ADDRESS/BITS."
  (let ((slash (position #\/ network)))
    (when slash
      (multiple-value-bind (number width) (host-number host)
        (multiple-value-bind (base base-width) (host-number (subseq network 0 slash))
          (let ((bits (parse-integer network :start (1+ slash) :junk-allowed t)))
            (and number base bits (= width base-width) (<= 0 bits width)
                 (= (ash number (- bits width)) (ash base (- bits width))))))))))

(defun host-of-domain-p (host domain)
  "True if HOST is DOMAIN or in it. Either may begin with a dot."
  (let* ((name (string-left-trim "." (string-left-trim "*" domain)))
         (start (- (length host) (length name))))
    (and (plusp (length name))
         (not (minusp start))
         (string-equal name host :start2 start)
         (or (zerop start) (char= #\. (char host (1- start)))))))

(defun excepted-p (host port exceptions)
  "True if EXCEPTIONS, a text with commas as in no_proxy, contains HOST at PORT: as a name, domain
or address, each with or without :PORT, as a network ADDRESS/BITS, or as *."
  (flet ((matches (entry)
           (multiple-value-bind (name its-port)
               (if (and (port-given-p entry) (not (host-number entry)) (not (find #\/ entry)))
                   (let ((colon (position #\: entry :from-end t)))
                     (values (string-trim "[]" (subseq entry 0 colon))
                             (parse-integer entry :start (1+ colon) :junk-allowed t)))
                   (values (string-trim "[]" entry) port))
             (and (eql port its-port)
                  (or (string= "*" name)
                      (in-network-p host name)
                      (if (host-number host)
                          (same-address-p host name)
                          (host-of-domain-p host name)))))))
    (some #'matches (split-list exceptions))))

(defun this-machine-p (host)
  "True if HOST means this machine, which a proxy cannot reach by that name."
  (or (string-equal "localhost" host)
      (in-network-p host "127.0.0.0/8")
      (in-network-p host "::1/128")))

;;; The choice

(defparameter *proxy-variables* '("grpc_proxy" "https_proxy" "HTTPS_PROXY" "http_proxy")
  "The environment variables for the proxy; the first that is set is used.")

(defparameter *exception-variables* '("no_grpc_proxy" "no_proxy" "NO_PROXY")
  "The environment variables for the hosts that use no proxy; the first that is set is used.")

(defun first-variable (names get-variable)
  "Two values: the value and the name of the first variable among NAMES that is set, according to
GET-VARIABLE, a function like POSIX-GETENV."
  (declare (type function get-variable))
  (dolist (name names nil)
    (let ((value (funcall get-variable name)))
      (when (plusp (length value)) (return (values value name))))))

(defun environment-proxy (host port &optional (get-variable #'sb-ext:posix-getenv))
  "The PROXY to HOST and PORT from the environment; nil if HOST and PORT use none. Signal MISUSE if
the proxy's URL is invalid."
  (multiple-value-bind (url variable) (first-variable *proxy-variables* get-variable)
    (and url
         (not (this-machine-p host))
         (not (excepted-p host port (or (first-variable *exception-variables* get-variable) "")))
         (parse-proxy url (format nil "The value of the environment variable ~A" variable)
                      host port))))

(defun may-have-proxy-p (target asked)
  "True if the connections to TARGET may use a proxy: TARGET consists of a host and a port, perhaps
after the scheme dns or passthrough. If ASKED is true, the user names the proxy; then the host may
also be a numeric address."
  (let ((scheme (loop:find-scheme target)))
    (member (if scheme (loop:scheme-name scheme) "dns")
            (if asked '("dns" "passthrough" "ipv4" "ipv6") '("dns" "passthrough"))
            :test #'string=)))

(defun find-proxy (target proxy)
  "The PROXY for a channel to TARGET, text; nil if the channel uses no proxy. PROXY is as for
MAKE-CHANNEL. Signal MISUSE if PROXY is wrong, or TARGET cannot be reached through a proxy."
  (unless (typep proxy '(or null string (eql :environment)))
    (misuse ":proxy must be a URL, :environment or NIL, not ~S." proxy))
  (let ((asked (stringp proxy)))
    (cond ((null proxy) nil)
          ((may-have-proxy-p target asked)
           (let* ((place (loop:parse-target target :for-channel t))
                  (host (loop:target-host place))
                  (port (loop:target-port place)))
             (cond ((not asked)
                    ;; a proxy cannot look up a target with a DNS server in it
                    (and (null (loop:target-server place)) (environment-proxy host port)))
                   ((or (loop:target-server place)
                        (and (host-number host) (rest (loop:target-addresses place))))
                    (misuse "A channel with a :proxy has one HOST:PORT as its target, not ~S."
                            target))
                   (t (parse-proxy proxy "The :proxy" host port)))))
          (asked (misuse "A channel with a :proxy has HOST:PORT as its target, not ~S."
                         target)))))
