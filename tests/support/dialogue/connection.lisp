;;;; The connection as a whole: preface, SETTINGS, PING, GOAWAY, time-outs, end of input, frames
;;;; that are wrong by their header alone (RFC 9113 sections 3.4, 4.1, 4.2, 5.4, 5.5, 6.5 to 6.8).

(in-package #:clgrpc.tests.dialogue)

;;; Preface

(define-dialogue server-begins (:server :stranger)
  "Our SETTINGS go out at once, and a WINDOW_UPDATE for the connection."
  (says '(:settings (:max-concurrent-streams 1000) (:max-header-list-size 16384)
          (:initial-window-size 2621440))
        '(:window-update 0 4128769))
  (is (= (length *preface*) (tells *preface*)))
  (silent)
  (is (not (h2:connection-ready-p (connection))))
  (hears '(:settings (:max-frame-size 20000)) '(:settings-ack))
  (says '(:settings-ack))
  (sees '(:settings))
  (is (h2:connection-ready-p (connection)))
  (is (null (h2:advance-time (connection) (expt 10 12)))))

(test client-begins
  "The client's preface comes first; push is refused; default values are not sent."
  (let ((*dialogue* (begin-dialogue :client '(:stream-window-octets 65535
                                              :connection-window-octets 65535))))
    (let ((octets (flush)))
      (is (equalp *preface* (subseq octets 0 24)))
      (is (equalp '((:settings (:enable-push 0) (:max-header-list-size 16384)))
                  (read-frame-forms (dialogue-peer *dialogue*) (subseq octets 24)))))))

(test preface-octet-by-octet
  "The preface may come in pieces, and is refused at the first wrong octet."
  (let ((*dialogue* (begin-dialogue :server '())))
    (flush)
    (loop for end from 1 below 24 do (is (= 0 (tells (subseq *preface* 0 end)))))
    (is (= 24 (tells *preface*))))
  (dolist (text '("GET / HTTP/1.1" "PRI * HTTP/2.1" "X" "PRI * HTTP/2.0xxxxxxxxxx"))
    (let ((*dialogue* (begin-dialogue :server '())))
      (flush)
      (is (= (length text) (tells (ascii-octets text))))
      (says '(:goaway 0 :protocol-error))
      (sees '(:close :protocol-error))
      (is (h2:connection-closed-p (connection)))
      (hears '(:ping 1))
      (silent))))

(test settings-come-first
  "Whatever comes before SETTINGS, also their acknowledgement, is an error at both ends."
  (dolist (role '(:server :client))
    (dolist (frame '((:ping 1) (:settings-ack) (:headers 1 :get) (:window-update 0 1)))
      (let ((*dialogue* (begin-dialogue role '())))
        (flush)
        (when (eq role :server) (tells *preface*))
        (hears frame)
        (says '(:goaway 0 :protocol-error))
        (sees '(:close :protocol-error))))))

(define-dialogue frames-in-pieces (:server)
  "Half a frame is left to the caller, who presents it again with more."
  (let ((octets (frames-octets (dialogue-peer *dialogue*)
                               '((:headers 1 :post) (:data 1 "hello" :end-stream))))
        (start 0))
    (loop for end from 1 to (length octets)
          do (incf start (tells (subseq octets start end))))
    (is (= start (length octets)))
    (sees '(:headers 1 "/greeter/hello" nil) '(:data 1 "hello" t))))

;;; Frames that are wrong by their header alone

(test frames-that-are-wrong
  "Each ends the connection with this code (4.2, 6)."
  (loop for ((type flags id length) . code)
          in '(((0 0 0 1) . :protocol-error) ((1 4 0 1) . :protocol-error)
               ((2 0 0 5) . :protocol-error) ((3 0 0 4) . :protocol-error)
               ((3 0 1 3) . :frame-size-error) ((3 0 1 5) . :frame-size-error)
               ((4 0 1 0) . :protocol-error) ((4 0 0 5) . :frame-size-error)
               ((4 1 0 6) . :frame-size-error) ((5 4 1 4) . :protocol-error)
               ((6 0 1 8) . :protocol-error) ((6 0 0 7) . :frame-size-error)
               ((6 0 0 9) . :frame-size-error) ((7 0 1 8) . :protocol-error)
               ((7 0 0 7) . :frame-size-error) ((8 0 0 3) . :frame-size-error)
               ((8 0 1 5) . :frame-size-error) ((9 4 0 1) . :protocol-error)
               ((0 0 1 16385) . :frame-size-error) ((1 4 1 16385) . :frame-size-error)
               ((99 0 0 16385) . :frame-size-error))
        do (dolist (role '(:server :client))
             (let ((*dialogue* (begin-dialogue role '())))
               (shake-hands)
               (hears (list :frame type flags id (make-octets length)))
               (says (list :goaway 0 code))
               (sees (list :close code))))))

(define-dialogue what-is-ignored (:server)
  "Unknown frames, unknown settings, undefined flags and the reserved bit mean nothing (4.1, 5.5)."
  (hears (list :frame 22 255 0 (make-octets 8))
         (list :frame 6 #x10 #x80000000 (make-octets 8))
         '(:settings (#xF0 17)))
  (says '(:ping-ack 0) '(:settings-ack))
  (sees '(:settings)))

(define-dialogue priority-of-the-wrong-size (:server)
  "Only a stream error (6.3)."
  (hears '(:headers 1 :post) (list :frame 2 0 1 (make-octets 4)))
  (says '(:rst-stream 1 :frame-size-error))
  (sees '(:headers 1 "/greeter/hello" nil) '(:reset 1 :frame-size-error :local) '(:closed 1)))

(test settings-that-are-wrong
  "Parameters have their ranges (6.5.2)."
  (loop for (role setting code) in '((:server (:enable-push 2) :protocol-error)
                                     (:client (:enable-push 1) :protocol-error)
                                     (:server (:max-frame-size 16383) :protocol-error)
                                     (:server (:max-frame-size 16777216) :protocol-error)
                                     (:server (:initial-window-size #xFFFFFFFF)
                                      :flow-control-error))
        do (let ((*dialogue* (begin-dialogue role '())))
             (shake-hands)
             (hears (list :settings setting))
             (says (list :goaway 0 code))
             (sees (list :close code)))))

(test settings-at-their-bounds
  "The least and the largest values; a client may allow a push, which never comes."
  (loop for (role setting) in '((:server (:enable-push 0)) (:server (:enable-push 1))
                                (:client (:enable-push 0))
                                (:server (:max-frame-size 16384))
                                (:server (:max-frame-size 16777215))
                                (:server (:initial-window-size #x7FFFFFFF))
                                (:server (:initial-window-size 0)))
        do (let ((*dialogue* (begin-dialogue role '())))
             (shake-hands)
             (hears (list :settings setting))
             (says '(:settings-ack))
             (sees '(:settings)))))

;;; PING

(define-dialogue pings (:server)
  "Answered with their own octets; answers to ours are told; a reset is answered to nobody."
  (hears '(:ping #x123456789ABCDEF0) '(:ping-ack 5))
  (says '(:ping-ack #x123456789ABCDEF0))
  (sees '(:ping-ack 5))
  (h2:send-ping (connection) 77)
  (says '(:ping 77)))

(define-dialogue too-many-answers (:server :max-queued-control-frames 10)
  "A peer that provokes answers and does not read them is cut off."
  (loop repeat 10 do (hears '(:ping 1)))
  (is (= 10 (length (read-frame-forms (dialogue-peer *dialogue*) (flush)))))
  (loop repeat 4 do (hears '(:ping 1) '(:settings)))
  (hears '(:headers 2147483647 ((":path" "/"))) '(:ping 1))
  (hears '(:ping 2))
  (let ((said (read-frame-forms (dialogue-peer *dialogue*) (flush))))
    (is (= 11 (length said)))
    (is (equal '(:goaway 2147483647 :enhance-your-calm) (first (last said)))))
  (is (h2:connection-stop-reading-p (connection)))
  (setf (dialogue-events *dialogue*) '()))

;;; GOAWAY

(define-dialogue client-hears-goaway (:client)
  "Streams above the last identifier were not processed; the others go on; none can be opened."
  (request :get :end t)
  (request :get :end t)
  (request :get)
  (flush)
  (hears '(:goaway 3 :no-error))
  (sees '(:goaway 3 :no-error) '(:reset 5 :refused-stream :goaway) '(:closed 5))
  (is (h2::connection-draining-p (connection)))
  (is (zerop (h2:available-streams (connection))))
  (is (null (h2:open-stream (connection))))
  (hears '(:headers 1 :ok :end-stream) '(:goaway 1 :no-error))
  (sees '(:headers 1 "200" t) '(:closed 1) '(:goaway 1 :no-error)
        '(:reset 3 :refused-stream :goaway) '(:closed 3))
  (hears '(:goaway 2147483647 :cancel))
  (sees '(:goaway 1 :cancel)))

(define-dialogue server-hears-goaway (:server)
  "A client that says GOAWAY still gets its answers; an unknown code is just a number."
  (hears '(:headers 1 :get :end-stream) '(:goaway 0 4711))
  (sees '(:headers 1 "/" t) '(:goaway 0 4711))
  (respond 1 :ok :end t)
  (hears '(:ping 1))
  (says '(:headers 1 :ok :end-stream) '(:ping-ack 1))
  (sees '(:closed 1)))

(define-dialogue server-drains (:server)
  "First the warning, then the real end: later streams are ignored, HPACK is kept in step."
  (hears '(:headers 1 :get))
  (sees '(:headers 1 "/" nil))
  (h2:send-goaway (connection) 0 :last-stream-id #x7FFFFFFF)
  (says '(:goaway 2147483647 :no-error))
  (hears '(:headers 3 :get))
  (sees '(:headers 3 "/" nil))
  (h2:send-goaway (connection) 0 :debug "bye")
  (says '(:goaway 3 :no-error))
  (hears '(:headers 5 ((":method" "GET") (":scheme" "http") (":path" "/new"))) '(:data 5 "x")
         '(:data 1 "x" :end-stream) '(:headers 3 ((":path-is-no-trailer" "/new")) :end-stream))
  (sees '(:data 1 "x" t) '(:reset 3 :protocol-error :local) '(:closed 3))
  (says '(:rst-stream 3 :protocol-error))
  (respond 1 :ok :end t)
  (h2:close-connection (connection) 0 "done")
  (says '(:headers 1 :ok :end-stream) '(:goaway 3 :no-error))
  (sees '(:closed 1) '(:close :no-error)))

(define-dialogue a-half-written-block-is-taken-back (:server)
  "If encoding fails midway the owner closes the connection, and the half block never leaves."
  (hears '(:headers 1 :get :end-stream))
  (sees '(:headers 1 "/" t))
  (multiple-value-bind (encoder buffer) (h2:begin-headers (find-stream 1))
    (hpack:encode-field encoder buffer (hpack:string-field "a" "b") :index))
  (signals misuse (h2:begin-headers (find-stream 1)))
  (h2:close-connection (connection) 2 "encoding failed")
  (says '(:goaway 1 :internal-error))
  (sees '(:reset 1 :internal-error :connection) '(:closed 1) '(:close :internal-error)))

;;; Time and end

(test time-outs
  "A peer must send its preface and acknowledge ours in time (6.5.3)."
  (let ((*dialogue* (begin-dialogue :server '(:preface-timeout-seconds 2
                                              :settings-timeout-seconds 3))))
    (flush)
    (is (= 2000000000 (h2:advance-time (connection) 1)))
    (tells *preface*)
    (hears '(:settings))
    (flush)
    (is (= 3000000000 (h2:advance-time (connection) 2500000000)))
    (is (null (h2:advance-time (connection) 3000000000)))
    (says '(:goaway 0 :settings-timeout))
    (sees '(:settings) '(:close :settings-timeout)))
  (let ((*dialogue* (begin-dialogue :client '(:preface-timeout-seconds 2))))
    (flush)
    (is (null (h2:advance-time (connection) 2000000000)))
    (says '(:goaway 0 :protocol-error))
    (sees '(:close :protocol-error))))

(define-dialogue end-of-input (:client)
  "Streams that are left end with :CONNECTION, each once; nothing is written."
  (request :get :end t)
  (request :get)
  (flush)
  (h2:receive-eof (connection))
  (h2:receive-eof (connection))
  (sees '(:reset 1 :no-error :connection) '(:closed 1) '(:reset 3 :no-error :connection)
        '(:closed 3) '(:close :no-error))
  (hears '(:headers 1 :ok)))

(define-dialogue peers-limit-of-streams (:client)
  "The peer's SETTINGS_MAX_CONCURRENT_STREAMS bounds what we open."
  (hears '(:settings (:max-concurrent-streams 2)))
  (says '(:settings-ack))
  (sees '(:settings))
  (is (= 2 (h2:available-streams (connection))))
  (request :get :end t)
  (request :get :end t)
  (is (null (h2:open-stream (connection))))
  (flush)
  (hears '(:headers 1 :ok :end-stream))
  (sees '(:headers 1 "200" t) '(:closed 1))
  (is (= 1 (h2:available-streams (connection))))
  (hears '(:settings (:max-concurrent-streams 0)))
  (says '(:settings-ack))
  (sees '(:settings))
  (is (zerop (h2:available-streams (connection)))))

(define-dialogue hpack-table-of-the-peer (:client)
  "A smaller SETTINGS_HEADER_TABLE_SIZE is announced in our next block (RFC 7541 4.2)."
  (hears '(:settings (:header-table-size 0)))
  (says '(:settings-ack))
  (sees '(:settings))
  (request :post)
  (let ((octets (flush)))
    (is (= #x20 (aref octets 9)))
    (is (equalp (list (canonical '(:headers 1 :post)))
                (read-frame-forms (dialogue-peer *dialogue*) octets)))))
