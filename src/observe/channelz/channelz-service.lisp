;;;; The service grpc.channelz.v1.Channelz (gRFC A14, channelz.proto). Each method finds its object
;;;; in the registries of channels and servers, or through these on their loops, and makes its
;;;; message there. The process keeps no data for channelz alone.

(in-package #:clgrpc.channelz)

(defconstant +page+ 100
  "The maximum number of channels or servers in an answer, even if the client sets no limit.")
(defconstant +socket-page+ 1000
  "The maximum number of references of sockets in an answer.")

(defclass channelz-service (v1:channelz) ()
  (:documentation "The service grpc.channelz.v1.Channelz. Give START-SERVER an instance beside your
own services: tools such as grpcdebug and `clgrpc channelz` can then read the state and counts of
the channels, servers and connections of this process, not of that server alone. The service answers
every client, so let only operators reach it. The service does not slow calls down."))

;;; Common parts of channels, subchannels and servers

(defun event-message (event loop)
  "The ChannelTraceEvent of EVENT, which has happened on LOOP."
  (apply #'v1:make-channel-trace-event
         :description (channel-event-text event)
         :severity (ecase (channel-event-severity event)
                     (:info :ct-info)
                     (:warning :ct-warning)
                     (:error :ct-error))
         :timestamp (stamp (channel-event-ns event) loop)
         (when (channel-event-child event)
           (list :subchannel-ref (v1:make-subchannel-ref :subchannel-id (channel-event-child event)
                                                         :name (channel-event-child-name event))))))

(defun trace-message (channel-trace loop)
  "The ChannelTrace of CHANNEL-TRACE, whose times are of LOOP's clock."
  (v1:make-channel-trace
   :num-events-logged (channel-trace-count channel-trace)
   :creation-timestamp (stamp (max 1 (channel-trace-born-ns channel-trace)) loop)
   :events (mapcar (lambda (event) (event-message event loop)) (channel-events channel-trace))))

(defun data-message (make loop channel-trace begun succeeded failed last-ns &rest more)
  "The data of a channel, a subchannel or a server, a message that MAKE makes from MORE,
CHANNEL-TRACE, the counts of its calls, and LAST-NS. LAST-NS is the time by LOOP's clock at which
the last call began, or 0."
  (apply make :trace (trace-message channel-trace loop)
         :calls-started begun :calls-succeeded succeeded :calls-failed failed
         (append (when (plusp last-ns)
                   (list :last-call-started-timestamp (stamp last-ns loop)))
                 more)))

(defun state-message (state)
  (v1:make-channel-connectivity-state :state state))

;;; Channels

(defun subchannel-ref (subchannel)
  (v1:make-subchannel-ref
   :subchannel-id (channel-trace-number (client:subchannel-channel-trace subchannel))
   :name (client:server-text subchannel)))

(defun channel-message (core)
  "The Channel message that describes CORE. On its loop."
  (v1:make-channel
   :ref (v1:make-channel-ref :channel-id (channel-trace-number (client:core-channel-trace core))
                             :name (client:core-name core))
   :data (data-message #'v1:make-channel-data (client:core-loop core)
                       (client:core-channel-trace core)
                       (client:core-calls-begun core) (client:core-calls-succeeded core)
                       (client:core-calls-failed core) (client:core-call-ns core)
                       :state (state-message (client:core-state core))
                       :target (client:core-name core))
   :subchannel-ref (mapcar #'subchannel-ref (reverse (client:core-subchannels core)))))

(defun subchannel-message (subchannel)
  "The Subchannel message that describes SUBCHANNEL. On its loop."
  (let* ((core (client:subchannel-core subchannel))
         (links (client:all-links (client:subchannel-connection-set subchannel)))
         (begun (client:subchannel-picks subchannel))
         (failed (+ (client:subchannel-failures subchannel)
                    (client:subchannel-cancellations subchannel))))
    (v1:make-subchannel
     :ref (subchannel-ref subchannel)
     :data (data-message #'v1:make-channel-data (client:core-loop core)
                         (client:subchannel-channel-trace subchannel)
                         begun
                         (max 0 (- begun failed (client:subchannel-calls subchannel)))
                         failed
                         (reduce #'max links :key (lambda (link) (particular link :stream-ns))
                                                :initial-value 0)
                         :state (state-message (client:subchannel-state subchannel))
                         :target (client:server-text subchannel))
     :socket-ref (mapcar #'link-ref links))))

(defun ask-for-channel (core)
  "The Channel message that describes CORE, or nil if CORE has just been closed."
  (ask (client:core-loop core) (lambda () (channel-message core))))

(defun find-in-channels (function)
  "The first value of FUNCTION, called with each channel's core on its loop, that is not nil."
  (declare (type function function))
  (first-found (lambda (core)
                 (ask (client:core-loop core) (lambda () (funcall function core))))
               (cores)))

;;; Servers

(defun server-message (server)
  (let* ((server-loops (server:server-loops server))
         (tallies (loop for server-loop in server-loops
                        collect (let ((server-loop server-loop))
                                  (or (ask (server:server-loop-loop server-loop)
                                           (lambda ()
                                             (multiple-value-list
                                              (server:server-loop-call-counts server-loop))))
                                      '(0 0 0 0)))))
         (number (channel-trace-number (server:server-channel-trace server))))
    (flet ((total (place combine)
             (reduce combine tallies :key (lambda (tally) (nth place tally)) :initial-value 0)))
      (v1:make-server
       :ref (v1:make-server-ref :server-id number
                                :name (format nil "~{~A~^,~}" (server:server-addresses server)))
       :data (data-message #'v1:make-server-data (server:server-loop-loop (first server-loops))
                           (server:server-channel-trace server)
                           (total 0 #'+) (total 1 #'+) (total 2 #'+) (total 3 #'max))
       :listen-socket (loop for (number . listener) in (reverse (server:server-sockets server))
                            collect (listener-ref number listener))))))

(defun server-links (server function)
  "The values of FUNCTION, without nil, for the links of SERVER, each on its loop."
  (declare (type function function))
  (loop for server-loop in (server:server-loops server)
        append (let ((server-loop server-loop))
                 (ask (server:server-loop-loop server-loop)
                      (lambda ()
                        (loop for link across (server:server-loop-links server-loop)
                              for value = (funcall function link)
                              when value collect value))))))

(defun link-loop (link) (particular link :loop))

(defun link-number (link) (particular link :number))

(defconstant +refs-at-once+ 100
  "The maximum number of references of sockets that are requested from a loop at once. 100
references take 0.3 ms of the loop's time.")

(defun link-refs (links)
  "The SocketRefs of LINKS, in the order of their numbers."
  (let ((refs '()))
    (dolist (loop (remove-duplicates (mapcar #'link-loop links)))
      (let ((own (remove loop links :key #'link-loop :test-not #'eq)))
        (loop while own
              do (let ((some (loop repeat +refs-at-once+ while own collect (pop own))))
                   (setf refs (nconc (ask loop (lambda () (mapcar #'link-ref some))) refs))))))
    (sort refs #'< :key #'v1:socket-ref-socket-id)))

(defun find-in-servers (number summary)
  "The Socket with NUMBER that a server has; nil if no server has it."
  (first-found (lambda (server)
                 (if-let ((listener (cdr (assoc number (server:server-sockets server)))))
                   (listener-message number listener)
                   (first (server-links server
                                        (lambda (link)
                                          (and (= number (link-number link))
                                               (link-message link summary)))))))
               (servers)))

;;; The methods

(defun most-results (wanted most)
  "The number of results in an answer: max_results, WANTED, of its request, but at most MOST."
  (when (minusp wanted) (status:fail :invalid-argument "max_results is negative"))
  (if (zerop wanted) most (min wanted most)))

(defun need-start (number)
  (when (minusp number) (status:fail :invalid-argument "the id to start with is negative"))
  number)

(defun unknown (kind number)
  (status:fail :not-found (format nil "there is no ~A ~D" kind number)))

(defmethod methods:get-top-channels ((service channelz-service) request &key)
  (multiple-value-bind (cores end)
      (page (cores) (need-start (v1:get-top-channels-request-start-channel-id request))
            (most-results (v1:get-top-channels-request-max-results request) +page+)
            (lambda (core) (channel-trace-number (client:core-channel-trace core))))
    (v1:make-get-top-channels-response :channel (remove nil (mapcar #'ask-for-channel cores))
                                       :end end)))

(defmethod methods:get-servers ((service channelz-service) request &key)
  (multiple-value-bind (servers end)
      (page (servers) (need-start (v1:get-servers-request-start-server-id request))
            (most-results (v1:get-servers-request-max-results request) +page+)
            (lambda (server) (channel-trace-number (server:server-channel-trace server))))
    (v1:make-get-servers-response :server (mapcar #'server-message servers) :end end)))

(defun need-server (number)
  (or (find-numbered number (servers) #'server:server-channel-trace)
      (unknown "server" number)))

(defmethod methods:get-server ((service channelz-service) request &key)
  (v1:make-get-server-response
   :server (server-message (need-server (v1:get-server-request-server-id request)))))

(defmethod methods:get-server-sockets ((service channelz-service) request &key)
  (let* ((server (need-server (v1:get-server-sockets-request-server-id request)))
         (start (need-start (v1:get-server-sockets-request-start-socket-id request)))
         (most (most-results (v1:get-server-sockets-request-max-results request) +socket-page+))
         (links (server-links server #'identity)))
    (multiple-value-bind (links end) (page links start most #'link-number)
      (v1:make-get-server-sockets-response :socket-ref (link-refs links) :end end))))

(defmethod methods:get-channel ((service channelz-service) request &key)
  (let* ((number (v1:get-channel-request-channel-id request))
         (core (find-numbered number (cores) #'client:core-channel-trace)))
    (v1:make-get-channel-response
     :channel (or (and core (ask-for-channel core))
                  (unknown "channel" number)))))

(defmethod methods:get-subchannel ((service channelz-service) request &key)
  (let ((number (v1:get-subchannel-request-subchannel-id request)))
    (v1:make-get-subchannel-response
     :subchannel (or (find-in-channels
                      (lambda (core)
                        (let ((found (find-numbered number (client:core-subchannels core)
                                                    #'client:subchannel-channel-trace)))
                          (and found (subchannel-message found)))))
                     (unknown "subchannel" number)))))

(defmethod methods:get-socket ((service channelz-service) request &key)
  (let ((number (v1:get-socket-request-socket-id request))
        (summary (v1:get-socket-request-summary request)))
    (v1:make-get-socket-response
     :socket (or (first-found
                  #'funcall
                  (list (lambda () (find-in-servers number summary))
                        (lambda ()
                          (find-in-channels
                           (lambda (core)
                             (let ((link (find number (links core) :key #'link-number)))
                               (and link (link-message link summary))))))))
                 (unknown "socket" number)))))
