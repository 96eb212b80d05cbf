;;;; Connections and listening sockets as channelz reports them: addresses, security, counts,
;;;; windows, and the kernel's options.

(in-package #:clgrpc.channelz)

(defun stamp (ns loop)
  "The google.protobuf.Timestamp of NS, a time of LOOP's clock; nil for 0, which means no time."
  (and (plusp ns)
       (protobuf:unix-time-timestamp
        (/ (- (real-time-ns) (- (loop:read-clock loop) ns)) +ns-per-second+))))

;;; Addresses

(defun internet-address (text)
  "The kernel's address for TEXT, as OS:ADDRESS-TEXT writes it; nil if it is not an internet
address. The name of a unix socket may end like such an address."
  (let ((colon (position #\: text :from-end t)))
    (and colon
         (not (eql 0 (search "unix:" text)))
         (not (eql 0 (search "unix-abstract:" text)))
         (every #'digit-char-p (subseq text (1+ colon)))
         (< (1+ colon) (length text))
         (multiple-value-bind (host port) (os:parse-address text) (os:make-address host port)))))

(defun address-message (text)
  "The Address that TEXT denotes; nil if TEXT is empty."
  (let ((internet (internet-address text)))
    (cond ((zerop (length text)) nil)
          (internet
           (v1:make-address
            :tcpip-address (v1:make-address.tcp-ip-address
                            :ip-address (if (= os:+af-inet+ (os:address-family internet))
                                            (subseq internet 4 8)
                                            (subseq internet 8 24))
                            :port (os:address-port internet))))
          ((eql 0 (search "unix:" text))
           (v1:make-address :uds-address (v1:make-address.uds-address :filename (subseq text 5))))
          (t (v1:make-address :other-address (v1:make-address.other-address :name text))))))

;;; Security

(defun particular (link name)
  "The value of NAME among the particulars of LINK. Call this on the link's loop, except for :NUMBER
and :LOOP."
  (getf (wire:describe-link link) name))

(defun security-message (link)
  "The Security of LINK; nil if it has no TLS, or no handshake is over. On its loop."
  (when-let ((security (particular link :security)))
    (let ((cipher (loop:security-cipher security))
          (own (loop:byte-channel-own-certificate
                (loop:connection-byte-channel (particular link :socket))))
          (peer (loop:security-peer-certificate security)))
      (v1:make-security
       :tls (apply #'v1:make-security.tls
                   ;; OpenSSL has its own names for cipher suites before TLS 1.3
                   (if (eql 0 (search "TLS_" cipher)) :standard-name :other-name) cipher
                   (append (and own (list :local-certificate own))
                           (and peer (list :remote-certificate
                                           (os:certificate-der peer)))))))))

;;; The kernel's options

(defun host-word (octets at size)
  "The number of SIZE octets, in this machine's order, at AT in OCTETS; 0 if they are not there."
  (loop for i below size
        sum (if (< (+ at i) (length octets))
                (ash (aref octets (+ at i)) (* 8 i))
                0)))

(defun option-message (name value additional)
  (v1:make-socket-option :name name :value value :additional (protobuf:any-pack additional)))

(defun linger-option (socket)
  "SO_LINGER of SOCKET: struct linger is two C ints: whether to linger, and for how many seconds."
  (when-let ((octets (os:socket-option-octets socket os:+sol-socket+ os:+so-linger+ 8)))
    (let ((active (plusp (host-word octets 0 4)))
          (seconds (host-word octets 4 4)))
      (option-message "SO_LINGER" (if active (format nil "~D s" seconds) "off")
                      (v1:make-socket-option-linger
                       :active active :duration (google.protobuf:make-duration
                                                 :seconds seconds))))))

(defun timeout-option (socket name option)
  "The OPTION of SOCKET that is called NAME: struct timeval is two words, seconds and microseconds."
  (when-let ((octets (os:socket-option-octets socket os:+sol-socket+ option 16)))
    (let ((seconds (host-word octets 0 8))
          (microseconds (host-word octets 8 8)))
      (option-message name (if (and (zerop seconds) (zerop microseconds))
                               "none"
                               (format nil "~D.~6,'0D s" seconds microseconds))
                      (v1:make-socket-option-timeout
                       :duration (google.protobuf:make-duration
                                  :seconds seconds :nanos (* 1000 microseconds)))))))

(defconstant +tcp-info-octets+ 92
  "The number of octets at the beginning of Linux's struct tcp_info that have existed since Linux
2.6.")

(defparameter *tcp-states*
  #("" "ESTABLISHED" "SYN_SENT" "SYN_RECV" "FIN_WAIT1" "FIN_WAIT2" "TIME_WAIT" "CLOSE" "CLOSE_WAIT"
    "LAST_ACK" "LISTEN" "CLOSING")
  "The names of the kernel's states of TCP, by number.")

(defun tcp-info-option (socket)
  "TCP_INFO of SOCKET: six octets, two numbers of four bits, and from the eighth octet on words of
32 bits; nil if it is not a TCP socket."
  (when-let ((octets (os:socket-option-octets socket os:+ipproto-tcp+ os:+tcp-info+
                                              +tcp-info-octets+)))
    (flet ((octet (at) (host-word octets at 1))
           (word (place) (host-word octets (+ 8 (* 4 place)) 4)))
      (option-message
       "TCP_INFO"
       (format nil "~A, rtt ~D us, ~D retransmitted"
               (if (< (octet 0) (length *tcp-states*)) (aref *tcp-states* (octet 0)) (octet 0))
               (word 15) (word 7))
       (v1:make-socket-option-tcp-info
        :tcpi-state (octet 0) :tcpi-ca-state (octet 1) :tcpi-retransmits (octet 2)
        :tcpi-probes (octet 3) :tcpi-backoff (octet 4) :tcpi-options (octet 5)
        :tcpi-snd-wscale (ldb (byte 4 0) (octet 6)) :tcpi-rcv-wscale (ldb (byte 4 4) (octet 6))
        :tcpi-rto (word 0) :tcpi-ato (word 1) :tcpi-snd-mss (word 2) :tcpi-rcv-mss (word 3)
        :tcpi-unacked (word 4) :tcpi-sacked (word 5) :tcpi-lost (word 6) :tcpi-retrans (word 7)
        :tcpi-fackets (word 8) :tcpi-last-data-sent (word 9) :tcpi-last-ack-sent (word 10)
        :tcpi-last-data-recv (word 11) :tcpi-last-ack-recv (word 12) :tcpi-pmtu (word 13)
        :tcpi-rcv-ssthresh (word 14) :tcpi-rtt (word 15) :tcpi-rttvar (word 16)
        :tcpi-snd-ssthresh (word 17) :tcpi-snd-cwnd (word 18) :tcpi-advmss (word 19)
        :tcpi-reordering (word 20))))))

(defun option-messages (socket)
  "The options of SOCKET, a descriptor of the kernel's that is open."
  (remove nil (list (linger-option socket)
                    (timeout-option socket "SO_RCVTIMEO" os:+so-rcvtimeo+)
                    (timeout-option socket "SO_SNDTIMEO" os:+so-sndtimeo+)
                    (tcp-info-option socket))))

;;; Connections

(defun local-text (link)
  (loop:connection-local (particular link :socket)))

(defun link-ref (link)
  "The SocketRef of LINK. On its loop."
  (v1:make-socket-ref :socket-id (particular link :number)
                      :name (format nil "~A -> ~A" (local-text link) (particular link :peer))))

(defun stream-data (link http2)
  "The part of SocketData about HTTP2, the core of LINK: a plist. On its loop."
  (let* ((counters (http2:connection-counters http2))
         (began (http2:counters-streams-opened counters))
         (failed (http2:counters-streams-failed counters)))
    (flet ((window (octets) (google.protobuf:make-int64-value :value octets)))
      (list* :streams-started began :streams-failed failed
             :streams-succeeded (max 0 (- began failed (http2:connection-stream-count http2)))
             :local-flow-control-window (window (http2:connection-send-window http2))
             :remote-flow-control-window (window (http2:connection-receive-window http2))
             (stamps link (if (eq :client (http2:connection-role http2))
                              :last-local-stream-created-timestamp
                              :last-remote-stream-created-timestamp)
                     (particular link :stream-ns))))))

(defun stamps (link &rest names-and-ns)
  "A plist of those names in NAMES-AND-NS whose time is not 0, with the STAMPs of the times."
  (loop for (name ns) on names-and-ns by #'cddr
        when (plusp ns) append (list name (stamp ns (particular link :loop)))))

(defun link-data (link)
  "The SocketData of LINK, without its options. A link that speaks HTTP/1.1, or whose protocol is
not known yet, has no streams. On its loop."
  (destructuring-bind (&key http2 messages-sent sent-ns messages-received received-ns keepalives
                       &allow-other-keys)
      (wire:describe-link link)
    (apply #'v1:make-socket-data
           :messages-sent messages-sent :messages-received messages-received
           :keep-alives-sent keepalives
           (append (when http2 (stream-data link http2))
                   (stamps link :last-message-sent-timestamp sent-ns
                           :last-message-received-timestamp received-ns)))))

(defun link-message (link summary)
  "The Socket message that describes LINK, without the kernel's options if SUMMARY is true. On its
loop."
  (let ((data (link-data link))
        (descriptor (loop:byte-channel-descriptor
                     (loop:connection-byte-channel (particular link :socket))))
        (security (security-message link)))
    (unless (or summary (minusp descriptor) (loop:simulated-p))
      (setf (v1:socket-data-option data) (option-messages descriptor)))
    (apply #'v1:make-socket
           :ref (link-ref link) :data data
           (loop for (name value) in `((:local ,(address-message (local-text link)))
                                       (:remote ,(address-message (particular link :peer)))
                                       (:security ,security))
                 when value append (list name value)))))

;;; Listening sockets of servers

(defun listener-ref (number listener)
  (v1:make-socket-ref :socket-id number :name (loop:listener-address listener)))

(defun listener-message (number listener)
  "The Socket message with NUMBER that describes LISTENER."
  (v1:make-socket :ref (listener-ref number listener)
                  :data (v1:make-socket-data)
                  :local (address-message (loop:listener-address listener))))
