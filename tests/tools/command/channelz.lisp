;;;; `channelz` and `top`, against servers of this process.

(in-package #:clgrpc.tests.tools)

(defun call-with-channelz-server (function &optional (service 'grpc:channelz-service))
  "Call FUNCTION with the address of a server of the greeter and of channelz, by the class SERVICE,
which has greeted once, and the channel that it was called on."
  (let ((server (grpc:start-server (list (make-instance 'clgrpc.examples:greeter)
                                         (make-instance service)))))
    (unwind-protect
         (grpc:with-channel (channel (grpc:server-address server))
           (helloworld.greeter:say-hello channel (helloworld:make-hello-request :name "Ada")
                                         :timeout 10)
           (funcall function (grpc:server-address server) channel))
      (grpc:stop-server server :drain 0))))

(defun id-in-line (output text)
  "The number with which the line of OUTPUT begins that has TEXT, or nil."
  (with-input-from-string (stream output)
    (loop for line = (read-line stream nil)
          while line
          when (search text line)
            do (let ((number (parse-integer line :junk-allowed t)))
                 (when number (return (princ-to-string number)))))))

(test channelz-shows-what-there-is
  (call-with-channelz-server
   (fn (address _channel)
     (flet ((show (&rest arguments)
              (multiple-value-bind (code output) (apply #'run-line "channelz" address arguments)
                (is (= 0 code) "~S: ~A" arguments output)
                output)))
       (let* ((all (show))
              (server (id-in-line (show "servers") address))
              (channel (id-in-line (show "channels") address)))
         (is (search "servers:" all))
         (is (search "channels:" all))
         (is (search "listening on" (show "server" server)))
         (let* ((shown (show "channel" channel))
                (subchannel (id-in-line (subseq shown (search "subchannels:" shown)) "READY")))
           (is (search "state changed from CONNECTING to READY" shown))
           (let* ((shown (show "subchannel" subchannel))
                  (socket (id-in-line (subseq shown (search "sockets:" shown)) address)))
             (is (search "TCP_INFO" (show "socket" socket)))
             (is (search "1 started" (show "socket" socket)))))
         (is (id-in-line (show "sockets" server) address))
         (is (eql 0 (search "{" (show "server" server "--json")))))))))

(defparameter *told-objects*
  (let ((data "'target':'a:1','state':{'state':'READY'},'callsStarted':12,'callsSucceeded':7,
'callsFailed':5,'lastCallStartedTimestamp':'2026-01-02T03:04:05.678Z'")
        (trace "'trace':{'numEventsLogged':4,'creationTimestamp':'2026-01-01T00:00:00Z','events':[
{'description':'a','severity':'CT_INFO','timestamp':'2026-01-02T03:04:05Z'},
{'description':'b\\u001b','severity':'CT_WARNING','timestamp':'2026-01-02T03:04:05Z',
 'subchannelRef':{'subchannelId':3}},{'description':'c','severity':'CT_ERROR'},
{'description':'d'}]}")
        (refs "[{'socketId':5,'name':'one'},{'socketId':16,'name':'two'}]"))
    (flet ((row (function type control &rest arguments)
             (list function type (substitute #\" #\' (apply #'format nil control arguments)))))
      (list (row 'tools::write-channel 'grpc.channelz.v1:channel
                 "{'ref':{'channelId':1},'data':{~A,~A},'socketRef':~A,
'subchannelRef':[{'subchannelId':3,'name':'three'},{'subchannelId':4}]}" data trace refs)
            (row 'tools::write-channel 'grpc.channelz.v1:channel "{'data':{'trace':{}}}")
            (row 'tools::write-subchannel 'grpc.channelz.v1:subchannel
                 "{'data':{~A,~A},'socketRef':~A}" data trace refs)
            (row 'tools::write-channels 'grpc.channelz.v1:channel
                 "{'ref':{'channelId':1},'data':{~A}}" data)
            (row 'tools::write-server 'grpc.channelz.v1:server
                 "{'ref':{'serverId':2,'name':'s'},'listenSocket':~A,'data':{'callsStarted':12,
'callsSucceeded':7,'callsFailed':5,'lastCallStartedTimestamp':'2026-01-02T03:04:05Z',~A}}"
                 refs trace)
            (row 'tools::write-servers 'grpc.channelz.v1:server
                 "{'ref':{'serverId':2,'name':'s'},'listenSocket':~A,'data':{'callsStarted':12,
'callsSucceeded':7,'callsFailed':5}}" refs)
            (row 'tools::write-socket 'grpc.channelz.v1:socket
                 "{'ref':{'name':'s'},'data':{'streamsStarted':9,'streamsSucceeded':8,
'streamsFailed':1,'messagesSent':2,'messagesReceived':3,'keepAlivesSent':4,
'lastLocalStreamCreatedTimestamp':'2026-01-02T03:04:05Z',
'lastMessageSentTimestamp':'2026-01-02T03:04:06Z','localFlowControlWindow':'7',
'lastMessageReceivedTimestamp':'2026-01-02T03:04:07Z','option':[{'name':'n','value':'v'}]},
'security':{'tls':{'standardName':'AES','localCertificate':'AQ=='}}}")
            (row 'tools::write-socket 'grpc.channelz.v1:socket
                 "{'ref':{'name':'s'},'security':{'tls':{'otherName':'other',
'remoteCertificate':'AQ=='}},'data':{'lastRemoteStreamCreatedTimestamp':'2026-01-02T03:04:05Z',
'remoteFlowControlWindow':'8'}}")
            (row 'tools::write-socket 'grpc.channelz.v1:socket
                 "{'ref':{'name':'s'},'security':{},'data':{}}"))))
  "Functions that print an object of channelz, and its type and JSON.")

(test objects-of-channelz-are-printed
  "Each kind of object, with all parts and with few."
  (with-replaced (('tools::ask-for-subchannel
                   (fn (_function _channel number)
                     (if (= 4 number)
                         (grpc:fail :not-found "gone")
                         (protobuf:parse-json-message 'grpc.channelz.v1:subchannel
                                                      "{\"data\":{\"callsStarted\":\"10\"}}")))))
    (support:check-record
     'channelz-texts
     (with-output-to-string (*standard-output*)
       (loop for (function type json) in *told-objects*
             for message = (protobuf:parse-json-message type json)
             do (format t "$ ~(~A~)~%" function)
                (case function
                  (tools::write-channel (funcall function message nil))
                  ((tools::write-channels tools::write-servers) (funcall function (list message)))
                  (t (funcall function message))))))))

(defclass forgetful-channelz (grpc:channelz-service) ())

(defmethod grpc.channelz.v1.channelz:get-subchannel ((service forgetful-channelz) request &key)
  (declare (ignore request))
  (grpc:fail :not-found "it was closed"))

(test subchannels-that-have-gone-are-left-out
  "A channel is shown though one of its subchannels was closed before it is asked for."
  (call-with-channelz-server
   (fn (address _channel)
     (let ((id (id-in-line (nth-value 1 (run-line "channelz" address "channels")) address)))
       (multiple-value-bind (code output) (run-line "channelz" address "channel" id)
         (is (= 0 code) "~A" output)
         (is-true (search "subchannels:" output))
         (is-true (search (format nil "ADDRESSES~2%") output) "~A" output))))
   'forgetful-channelz))

(test a-server-of-channelz-has-time-to-answer
  (let ((timeouts '()))
    (grpc:with-channel (channel "127.0.0.1:1"
                                :interceptors
                                (list (fn (_method _request options _next)
                                        (push (getf options :timeout) timeouts)
                                        (grpc:fail :aborted "enough"))))
      (loop for (function . arguments) in '((tools::ask-for-channels) (tools::ask-for-servers)
                                            (tools::ask-for-server-sockets 1)
                                            (tools::ask-for-channel 1) (tools::ask-for-subchannel 1)
                                            (tools::ask-for-server 1) (tools::ask-for-socket 1))
            do (signals grpc:aborted (apply function channel arguments))))
    (is (equal (make-list 7 :initial-element tools::+channelz-seconds+) timeouts))))

(sb-ext:defglobal **told-channels** '()) ; what the next class answers

(defclass strange-channelz (grpc:channelz-service) ())

(defmethod grpc.channelz.v1.channelz:get-top-channels ((service strange-channelz) request &key)
  (declare (ignore request))
  (grpc.channelz.v1:make-get-top-channels-response :channel **told-channels** :end t))

(test channelz-takes-no-harm-from-a-server
  "Parts that it leaves out, and more channels than there can be, end the command like other
failures, without a backtrace in which its text would be. So do errors that nobody has foreseen."
  (let ((escape (format nil "~C[31m" #\Escape)) (ref nil))
    (flet ((channel (&rest data)
             (grpc.channelz.v1:make-channel
              :ref ref
              :data (and data (apply #'grpc.channelz.v1:make-channel-data :target escape data))))
           (complaint (channels &key (most tools::*most-items*) (run #'run-line))
             (setf **told-channels** channels)
             (call-with-channelz-server
              (fn (address _channel)
                (let ((tools::*most-items* most))
                  (multiple-value-bind (code output errors)
                      (funcall run "channelz" address "channels")
                    (declare (ignore output))
                    (is (= 1 code))
                    (is (not (find #\Escape errors)))
                    errors)))
              'strange-channelz)))
      (is (search "leaves out the id" (complaint (list (channel :calls-started 1)))))
      (setf ref (grpc.channelz.v1:make-channel-ref :channel-id 7))
      (is (search "leaves out the data" (complaint (list (channel)))))
      (is (search "more than 2 objects"
                  (complaint (loop repeat 3 collect (channel :calls-started 1)) :most 2)))
      (with-replaced (('tools::ask-for-channels (fn (&rest _arguments) (error "~A" escape))))
        (is (search "an error of clgrpc itself: \\x1b" (complaint '() :run #'run-broken-line))
            "its own errors are shown without such sequences")
        (signals error (complaint '()))))))

(test channelz-takes-what-a-server-may-say
  "As many objects as it may list, the greatest number, and a time that has no date."
  (is (= (1+ tools::*most-items*)
         (count #\Newline (with-output-to-string (*standard-output*)
                            (tools::write-table '("ID" "NAME")
                                                (loop for i below tools::*most-items*
                                                      collect (list i "x")))))))
  (let ((starts '()))
    (tools::all-pages (fn (start _timeout) (push start starts))
                      (constantly (list (1- (ash 1 63)))) #'identity (constantly nil))
    (is (equal '(0) starts)))
  (is (string= "1900-01-01 00:00:00.000Z"
               (tools::time-text (google.protobuf:make-timestamp :seconds (- (expt 10 12)))))))

(test channelz-has-one-deadline-for-all-pages
  "A server that always has one more object is asked for so long in all, and each time for no longer
than is left of that."
  (let ((tools::*list-seconds* 1/20) (tools::*most-items* most-positive-fixnum) (timeouts '()))
    (handler-case (tools::all-pages (lambda (start timeout)
                                      (push timeout timeouts)
                                      start)
                                    #'list #'identity (constantly nil))
      (grpc:clgrpc-error (error) (is (search "within 1/20 seconds" (princ-to-string error))))
      (:no-error (items) (fail "~D items" (length items))))
    (is (every #'plusp timeouts))
    (is (equal timeouts (sort (copy-list timeouts) #'<)) "they get shorter")
    (is (every (lambda (timeout) (<= timeout 0.05d0)) timeouts))))

(test channelz-says-what-is-wrong
  (call-with-channelz-server
   (fn (address _channel)
     (dolist (arguments '(("nothing") ("channel") ("channel" "x") ("servers" "1")))
       (is (= 2 (apply #'run-line "channelz" address arguments)) "~S" arguments))
     (is (= 1 (run-line "channelz" address "socket" "1000000000"))))))

(test top-in-a-pipe
  (call-with-channelz-server
   (fn (address _channel)
     (multiple-value-bind (code output) (run-line "top" address "--once" "--interval" "0.1")
       (is (= 0 code))
       (is (search "CALLS/S" output))
       (is (search "server" output))
       (is (search address output))))))

(test top-tells-rates
  (flet ((look (seconds started failed)
           (tools::make-sample :ns (* seconds 1000000000)
                             :readings (list (tools::make-reading
                                              :kind "server" :number 7 :name "x"
                                              :started started :failed failed
                                              :succeeded (- started failed 1))))))
    (let ((row (first (tools::sample-rows (look 3 120 10) (look 1 100 4)))))
      (is (equal '("server" 7 "10.0" "3.0" 1 120 10) (subseq row 0 7))))
    (is (equal '("60.0" "5.0")
               (subseq (first (tools::sample-rows (look 3 120 10)
                                                  (tools::make-sample :ns 1000000000)))
                       2 4))
        "a server that has come meanwhile")
    (is (string= "-" (third (first (tools::sample-rows (look 3 120 10) nil)))))))

(test top-sorts
  (flet ((look (&rest rows)
           (tools::make-sample :ns 1000000000
                             :readings (loop for (name started succeeded failed) in rows
                                             for number from 1
                                             collect (tools::make-reading
                                                      :kind "server" :number number :name name
                                                      :started started :failed failed
                                                      :succeeded succeeded)))))
    (let ((look (look '("b" 10 9 1) '("c" 30 2 0) '("a" 20 20 0))))
      (flet ((order (order) (mapcar (lambda (row) (first (last row)))
                                    (tools::sample-rows look nil order))))
        (is (equal '("a" "b" "c") (order "name")))
        (is (equal '("c" "b" "a") (order "running")))))
    (is (equal '("failed" "calls") (list (tools::next-order "calls") (tools::next-order "name"))))))

(test top-fits-the-terminal
  "However many lines there are, and however long: the head stays, and what has no room is told."
  (let ((lines (loop for i below 50 collect (format nil "~3D ~A" i (make-string 200)))))
    (let ((fit (tools::fit-lines lines 12 60)))
      (is (= 12 (length fit)))
      (is (every (lambda (line) (<= (length line) 60)) fit))
      (is (string= "… 39 more" (first (last fit)))))
    (is (= 50 (length (tools::fit-lines lines 50 300))))))

(test top-has-a-head
  (flet ((look (seconds cpu)
           (tools::make-sample :ns (* seconds 1000000000)
                             :figures `(("process_cpu_seconds_total" . ,cpu)
                                        ("clgrpc_heap_used_bytes" . 25000000)
                                        ("clgrpc_heap_limit_bytes" . 1000000000)
                                        ("clgrpc_gc_collections_total" . 7)))))
    (is (eql 0 (search "CPU 50.0 %  heap 25.0 of 1000.0 MB  collections 7"
                       (tools::head-line (look 3 11) (look 1 10)))))
    (is (null (tools::head-line (tools::make-sample :ns 1) nil))))
  (is (string= "1:02:03" (tools::uptime-text 3723.4d0)))
  (is (equal '(("process_threads" . 12))
             (tools::read-figures
              (clgrpc.base:string-octets
              (format nil "# x~%process_threads{a=\"b\"} 12~%other 1~%"))))))

(test serve-channelz
  (with-serve (program address "greeter" "--channelz")
    (is (string= (format nil "channelz on ~A" address) (support:program-line program)))
    (multiple-value-bind (code output) (run-line "channelz" address "servers")
      (is (= 0 code))
      (is (search address output)))))
