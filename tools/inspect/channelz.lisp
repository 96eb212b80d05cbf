;;;; The command `channelz`: the data of the service channelz, as tables for people or as JSON. The
;;;; server's texts go through SHOWN, which removes control sequences of terminals.

(in-package #:clgrpc.tools)

(defconstant +channelz-seconds+ 10
  "The maximum number of seconds to wait for an answer of channelz.")

;;; Asking

(defparameter *most-items* 200000
  "The maximum number of objects of a kind that we ask a server for.")
(defparameter *list-seconds* 60
  "The maximum number of seconds for which we ask a server for all objects of a kind.")

(defun told (part what)
  "PART, a part of a server's answer. Signal a FAILURE, which names the value WHAT, if the server
has omitted it."
  (or part (fail-command "the server's channelz leaves out ~A" what)))

(defun data-of (reader object)
  (told (funcall (the function reader) object) "the data of an object"))

(defun all-pages (ask items number end)
  "All items, collected from several responses. ASK, a function of the first id wanted and of a
timeout in seconds, returns a response. ITEMS, a function of a response, returns its items; END
returns true if the response is the last. NUMBER, a function of an item, returns its id. Signal a
FAILURE if there are more than *MOST-ITEMS*, or the server takes more than *LIST-SECONDS*."
  (declare (type function ask items number end))
  (loop with start = 0 and count = 0 and next = 0
        with deadline = (+ (monotonic-ns) (seconds-ns *list-seconds*))
        for left = (- deadline (monotonic-ns))
        for response = (if (plusp left)
                           (funcall ask start (min +channelz-seconds+ (ns-seconds left)))
                           (fail-command "the server's channelz has not listed all objects within ~
                                          ~D seconds" *list-seconds*))
        for page = (coerce (funcall items response) 'list)
        append page
        do (when (< *most-items* (incf count (length page)))
             (fail-command "the server's channelz lists more than ~D objects" *most-items*))
        ;; otherwise a server that gives no new items would be asked for ever
        until (or (funcall end response) (null page)
                  (not (< start
                          (setf next (1+ (funcall number (first (last page)))))
                          (ash 1 63))))
        do (setf start next)))

(defun channel-id (channel)
  (channelz:channel-ref-channel-id (told (channelz:channel-ref channel) "the id of a channel")))

(defun server-id (server)
  (channelz:server-ref-server-id (told (channelz:server-ref server) "the id of a server")))

(defun server-name (server)
  (channelz:server-ref-name (told (channelz:server-ref server) "the name of a server")))

(defun ask-for-channels (grpc-channel)
  (all-pages (lambda (start timeout)
               (channelz-methods:get-top-channels
                grpc-channel (channelz:make-get-top-channels-request :start-channel-id start)
                :timeout timeout))
             #'channelz:get-top-channels-response-channel #'channel-id
             #'channelz:get-top-channels-response-end))

(defun ask-for-servers (grpc-channel)
  (all-pages (lambda (start timeout)
               (channelz-methods:get-servers
                grpc-channel (channelz:make-get-servers-request :start-server-id start)
                :timeout timeout))
             #'channelz:get-servers-response-server #'server-id
             #'channelz:get-servers-response-end))

(defun ask-for-server-sockets (grpc-channel number)
  (all-pages (lambda (start timeout)
               (channelz-methods:get-server-sockets
                grpc-channel (channelz:make-get-server-sockets-request
                              :server-id number :start-socket-id start)
                :timeout timeout))
             #'channelz:get-server-sockets-response-socket-ref #'channelz:socket-ref-socket-id
             #'channelz:get-server-sockets-response-end))

(defun ask-for-one (what reader stub grpc-channel request)
  "Call STUB with REQUEST and return the part of the answer that READER returns; errors call this
part WHAT."
  (told (funcall reader (funcall stub grpc-channel request :timeout +channelz-seconds+)) what))

(defun ask-for-channel (grpc-channel number)
  (ask-for-one "the channel" #'channelz:get-channel-response-channel
               #'channelz-methods:get-channel grpc-channel
               (channelz:make-get-channel-request :channel-id number)))

(defun ask-for-subchannel (grpc-channel number)
  (ask-for-one "the subchannel" #'channelz:get-subchannel-response-subchannel
               #'channelz-methods:get-subchannel grpc-channel
               (channelz:make-get-subchannel-request :subchannel-id number)))

(defun ask-for-server (grpc-channel number)
  (ask-for-one "the server" #'channelz:get-server-response-server
               #'channelz-methods:get-server grpc-channel
               (channelz:make-get-server-request :server-id number)))

(defun ask-for-socket (grpc-channel number)
  (ask-for-one "the socket" #'channelz:get-socket-response-socket
               #'channelz-methods:get-socket grpc-channel
               (channelz:make-get-socket-request :socket-id number)))

;;; Tables

(defun write-table (header rows)
  "Print ROWS, lists of texts and numbers, as a table below HEADER, a list of texts. Numbers are
aligned to the right; the last column is not padded."
  (let* ((texts (loop for row in (cons header rows)
                      collect (loop for cell in row collect (shown (princ-to-string cell)))))
         (widths (loop for column below (length header)
                       collect (loop for row in texts maximize (length (nth column row)))))
         (kinds (if rows (mapcar #'numberp (first rows)) (mapcar (constantly nil) header))))
    (dolist (row texts)
      (write-line (string-right-trim
                   " " (format nil "~{~A~^  ~}"
                               (mapcar (lambda (cell width right)
                                         (if right
                                             (format nil "~V@A" width cell)
                                             (format nil "~VA" width cell)))
                                       row widths kinds)))))))

(defun write-facts (&rest facts)
  "Print FACTS, a plist of names and values, one fact on each line. Facts whose value is nil are
omitted."
  (loop for (name value) on facts by #'cddr
        when value do (format t "~14A ~A~%" name (shown (princ-to-string value)))))

(defun time-text (timestamp)
  "The text of TIMESTAMP, which may be nil, in UTC. A time before 1900, which no object can have, is
shown as the beginning of 1900."
  (and timestamp
       (multiple-value-bind (universal nanoseconds) (grpc:timestamp-universal-time timestamp)
         (multiple-value-bind (second minute hour day month year)
             (decode-universal-time (max 0 universal) 0)
           (format nil "~4D-~2,'0D-~2,'0D ~2,'0D:~2,'0D:~2,'0D.~3,'0DZ" year month day hour minute
                   second (floor nanoseconds 1000000))))))

(defun connectivity-name (data)
  (if-let ((state (channelz:channel-data-state data)))
    (substitute #\_ #\- (princ-to-string (channelz:channel-connectivity-state-state state)))
    "UNKNOWN"))

(defun severity-text (severity)
  (case severity
    (:ct-info "info")
    (:ct-warning "warning")
    (:ct-error "error")
    (t "unknown")))

(defun write-trace (trace)
  "Print the events of TRACE, a ChannelTrace or nil."
  (when trace
    (format t "~%events: ~D since ~A~%" (channelz:channel-trace-num-events-logged trace)
            (or (time-text (channelz:channel-trace-creation-timestamp trace)) "?"))
    (map nil (lambda (event)
               (format t "  ~A  ~7A  ~A~@[ (subchannel ~D)~]~%"
                       (or (time-text (channelz:channel-trace-event-timestamp event)) "?")
                       (severity-text (channelz:channel-trace-event-severity event))
                       (shown (channelz:channel-trace-event-description event))
                       (let ((child (channelz:channel-trace-event-subchannel-ref event)))
                         (and child (channelz:subchannel-ref-subchannel-id child)))))
         (channelz:channel-trace-events trace))))

(defun data-row (data)
  "The cells of a table's row about DATA, a ChannelData: state and calls."
  (list (connectivity-name data) (channelz:channel-data-calls-started data)
        (channelz:channel-data-calls-succeeded data) (channelz:channel-data-calls-failed data)))

(defun write-channels (channels)
  (write-table '("ID" "STATE" "STARTED" "OK" "FAILED" "TARGET")
               (loop for channel in channels
                     for data = (data-of #'channelz:channel-data channel)
                     collect `(,(channel-id channel) ,@(data-row data)
                               ,(channelz:channel-data-target data)))))

(defun write-data (data)
  "Print DATA, a ChannelData, without its state."
  (write-facts "target" (channelz:channel-data-target data)
               "state" (connectivity-name data)
               "calls" (format nil "~D started, ~D succeeded, ~D failed"
                               (channelz:channel-data-calls-started data)
                               (channelz:channel-data-calls-succeeded data)
                               (channelz:channel-data-calls-failed data))
               "last call" (time-text (channelz:channel-data-last-call-started-timestamp data))))

(defun write-socket-refs (title refs)
  (when (plusp (length refs))
    (format t "~%~A:~%" title)
    (write-table '("ID" "NAME") (map 'list (lambda (ref)
                                             (list (channelz:socket-ref-socket-id ref)
                                                   (channelz:socket-ref-name ref)))
                                     refs))))

(defun write-channel (channel grpc-channel)
  (write-data (data-of #'channelz:channel-data channel))
  (when-let ((refs (coerce (channelz:channel-subchannel-ref channel) 'list)))
    (format t "~%subchannels:~%")
    (write-table '("ID" "STATE" "STARTED" "OK" "FAILED" "ADDRESSES")
                 (loop for ref in refs
                       for number = (channelz:subchannel-ref-subchannel-id ref)
                       ;; the subchannel may have been closed meanwhile
                       for subchannel = (handler-case (ask-for-subchannel grpc-channel number)
                                          (grpc:not-found () nil))
                       when subchannel
                         collect `(,number ,@(data-row (data-of #'channelz:subchannel-data
                                                                subchannel))
                                   ,(channelz:subchannel-ref-name ref)))))
  (write-socket-refs "sockets" (channelz:channel-socket-ref channel))
  (write-trace (channelz:channel-data-trace (data-of #'channelz:channel-data channel))))

(defun write-subchannel (subchannel)
  (write-data (data-of #'channelz:subchannel-data subchannel))
  (write-socket-refs "sockets" (channelz:subchannel-socket-ref subchannel))
  (write-trace (channelz:channel-data-trace (data-of #'channelz:subchannel-data subchannel))))

(defun write-servers (servers)
  (write-table '("ID" "STARTED" "OK" "FAILED" "LISTENS ON")
               (loop for server in servers
                     for data = (data-of #'channelz:server-data server)
                     collect (list (server-id server) (channelz:server-data-calls-started data)
                                   (channelz:server-data-calls-succeeded data)
                                   (channelz:server-data-calls-failed data)
                                   (format nil "~{~A~^, ~}"
                                           (map 'list #'channelz:socket-ref-name
                                                (channelz:server-listen-socket server)))))))

(defun write-server (server)
  (let ((data (data-of #'channelz:server-data server)))
    (write-facts "server" (server-name server)
                 "calls" (format nil "~D started, ~D succeeded, ~D failed"
                                 (channelz:server-data-calls-started data)
                                 (channelz:server-data-calls-succeeded data)
                                 (channelz:server-data-calls-failed data))
                 "last call" (time-text (channelz:server-data-last-call-started-timestamp data)))
    (write-socket-refs "listens on" (channelz:server-listen-socket server))
    (write-trace (channelz:server-data-trace data))))

(defun security-text (security)
  "The text, one line, for SECURITY, which may be nil."
  (let ((tls (and security (channelz:security-tls security))))
    (cond ((null security) nil)
          (tls (format nil "TLS, ~A, ~:[we show no certificate~;we show a certificate~], ~
                            the peer ~:[none~;one~]"
                       (if (plusp (length (channelz:security.tls-standard-name tls)))
                           (channelz:security.tls-standard-name tls)
                           (channelz:security.tls-other-name tls))
                       (plusp (length (channelz:security.tls-local-certificate tls)))
                       (plusp (length (channelz:security.tls-remote-certificate tls)))))
          (t "not TLS"))))

(defun write-socket (socket)
  (let ((data (data-of #'channelz:socket-data socket)))
    (flet ((window (value) (if value (google.protobuf:int64-value-value value) "?")))
      (write-facts
       "socket" (channelz:socket-ref-name (told (channelz:socket-ref socket)
                                                "the name of a socket"))
       "security" (security-text (channelz:socket-security socket))
       "streams" (format nil "~D started, ~D succeeded, ~D failed"
                         (channelz:socket-data-streams-started data)
                         (channelz:socket-data-streams-succeeded data)
                         (channelz:socket-data-streams-failed data))
       "messages" (format nil "~D sent, ~D received" (channelz:socket-data-messages-sent data)
                          (channelz:socket-data-messages-received data))
       "keepalives" (format nil "~D sent" (channelz:socket-data-keep-alives-sent data))
       "windows" (format nil "we may send ~A octets, the peer ~A"
                         (window (channelz:socket-data-local-flow-control-window data))
                         (window (channelz:socket-data-remote-flow-control-window data)))
       "last stream" (time-text
                      (or (channelz:socket-data-last-local-stream-created-timestamp data)
                          (channelz:socket-data-last-remote-stream-created-timestamp data)))
       "last sent" (time-text (channelz:socket-data-last-message-sent-timestamp data))
       "last received" (time-text (channelz:socket-data-last-message-received-timestamp data))))
    (map nil (lambda (option)
               (write-facts (shown (channelz:socket-option-name option))
                            (channelz:socket-option-value option)))
         (channelz:socket-data-option data))))

;;; The command

(defun write-json-messages (messages)
  (dolist (message messages)
    (write-line (protobuf:message-json message))))

(defun parse-channelz-number (what text)
  (if text
      (funcall (integer-parser 1 most-positive-fixnum) text)
      (refuse "~A needs an id" what)))

(defun show-channelz (grpc-channel what number json)
  "Print the objects of the kind WHAT or, if the kind needs a number, the object with NUMBER."
  (flet ((number () (parse-channelz-number what number))
         (show (messages function &rest arguments)
           (if json
               (write-json-messages messages)
               (apply function arguments))))
    (when (and number (member what '("all" "channels" "servers") :test #'string=))
      (refuse "~A takes no id" what))
    (cond ((string= what "all")
           (let ((servers (ask-for-servers grpc-channel))
                 (channels (ask-for-channels grpc-channel)))
             (show (append servers channels)
                   (lambda ()
                     (write-line "servers:")
                     (write-servers servers)
                     (format t "~%channels:~%")
                     (write-channels channels)))))
          ((string= what "channels")
           (let ((channels (ask-for-channels grpc-channel)))
             (show channels #'write-channels channels)))
          ((string= what "servers")
           (let ((servers (ask-for-servers grpc-channel)))
             (show servers #'write-servers servers)))
          ((string= what "channel")
           (let ((channel (ask-for-channel grpc-channel (number))))
             (show (list channel) #'write-channel channel grpc-channel)))
          ((string= what "subchannel")
           (let ((subchannel (ask-for-subchannel grpc-channel (number))))
             (show (list subchannel) #'write-subchannel subchannel)))
          ((string= what "server")
           (let ((server (ask-for-server grpc-channel (number))))
             (show (list server) #'write-server server)))
          ((string= what "socket")
           (let ((socket (ask-for-socket grpc-channel (number))))
             (show (list socket) #'write-socket socket)))
          ((string= what "sockets")
           (let ((refs (ask-for-server-sockets grpc-channel (number))))
             (show refs #'write-socket-refs "sockets" refs)))
          (t (refuse "~S cannot be shown; give all, channels, channel ID, subchannel ID, servers, ~
                      server ID, sockets SERVER or socket ID" what)))))

(define-command "channelz"
    (((address "ADDRESS" (address-parser 1) "Where a server serves channelz.")
      (what "[WHAT]" #'identity
            "The objects to show: all, the default, channels, channel ID, subchannel ID, servers,
      server ID, sockets SERVER-ID or socket ID.")
      (number "[ID]" #'identity "The id of the object to show."))
     ((json "[true|false]" #'parse-boolean nil "Print JSON, a line for each message.")
      client-tls))
    "Show the channels, servers and connections of a process with their states and counts. Asks its
channelz service (gRFC A14)."
  (grpc:with-channel (channel address
                      :credentials (client-credentials tls-ca tls-cert tls-key tls-name))
    (show-channelz channel (or what "all") number json))
  0)
