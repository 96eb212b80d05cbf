;;;; The life of a connection: preface and first SETTINGS (RFC 9113 section 3.4), opening streams
;;;; (5.1.1), shutting down by GOAWAY (6.8), end of input, time-outs (6.5.3).
;;;;
;;;; Graceful end at a server: SEND-GOAWAY with the largest identifier; after a round trip
;;;; (SEND-PING) SEND-GOAWAY with the default; then CLOSE-CONNECTION when STREAM-COUNT is 0.

(in-package #:clgrpc.http2)

(defun make-connection (role sink options &key user (pool (make-pool)))
  "Return a connection for ROLE, :CLIENT or :SERVER, that calls SINK and is limited by OPTIONS.
USER is kept in CONNECTION-USER. Connections of one thread may share a POOL. Call START-CONNECTION
next."
  (check-type role (member :client :server))
  (%make-connection (eq role :server) sink options user pool
                    (hpack:make-encoder :table-octets (options-header-table-octets options))
                    (hpack:make-decoder :table-octets (max +default-table-octets+
                                                           (options-header-table-octets options))
                                        :list-octets (options-max-header-list-octets options)
                                        :list-fields (options-max-header-fields options)
                                        :common (pool-common pool))
                    (options-stream-window-octets options)
                    (options-connection-window-octets options)))

(defun start-connection (connection now)
  "Write the beginning of CONNECTION: a client's preface, SETTINGS, and the WINDOW_UPDATE that
raises the connection's window to the size in the options. The connection's time-outs begin at NOW,
in nanoseconds."
  (let ((options (connection-options connection))
        (raise (- (connection-connection-window connection) +default-window+)))
    (unless (connection-server-p connection)
      (append-octets (output-buffer connection) **preface**)
      (setf (connection-phase connection) +awaiting-settings+))
    (emit-settings connection)
    (when (plusp raise)
      (incf (connection-receive-window connection) raise)
      (emit-window-update connection 0 raise))
    (setf (connection-last-receive-ns connection) now
          (connection-settings-deadline connection)
          (+ now (seconds-ns (options-settings-timeout-seconds options)))
          (connection-preface-deadline connection)
          (+ now (seconds-ns (options-preface-timeout-seconds options))))
    nil))

(defun advance-time (connection now)
  "Advance the time of CONNECTION to NOW, in nanoseconds. If the peer is late with its preface or
with the acknowledgement of our SETTINGS, the connection ends. Return the time by which this
function must be called again, or NIL if no deadline is pending."
  (let ((settings (connection-settings-deadline connection))
        (preface (connection-preface-deadline connection)))
    (cond ((and (plusp preface) (<= preface now))
           (fail-connection connection +protocol-error+ "no preface and SETTINGS in time")
           nil)
          ((and (plusp settings) (<= settings now))
           (fail-connection connection +settings-timeout+ "SETTINGS were not acknowledged in time")
           nil)
          ((and (plusp preface) (plusp settings)) (min preface settings))
          ((plusp preface) preface)
          ((plusp settings) settings)
          (t nil))))

(defun connection-block-since-ns (connection)
  "Return the time at which the header block that waits for CONTINUATIONs began, or nil if there is
none."
  (let ((block (connection-partial-block connection)))
    (and block (partial-block-since-ns block))))

(defconstant +bare-octets+ 2048
  "The memory in octets of a connection without streams and queued octets, including its owner's
structures.")
(defconstant +stream-octets+ 1024
  "The memory in octets of an open stream, including the minimum that the stream's owner keeps for
it.")

(defconstant +most-places+ (ash 1 24)
  "The maximum length of a vector of a connection.")

(define-hot (kept-octets :inline t) ((connection connection)) index
  "Return the approximate number of octets of memory that CONNECTION keeps: its tables, its streams,
the queued DATA, and an incomplete header block. Memory of CONNECTION's owner is not included."
  (let ((block (connection-partial-block connection)))
    (+ +bare-octets+
       (* +stream-octets+ (connection-stream-count connection))
       (* 8 (min +most-places+ (length (connection-table connection))))
       (* 4 (min +most-places+ (length (connection-resets connection))))
       ;; a client's queued octets are those of its own user
       (if (connection-server-p connection)
           (counters-queued-octets (connection-counters connection))
           0)
       (if block (length (buffer-octets (partial-block-buffer block))) 0)
       (hpack:decoder-memory (connection-decoder connection))
       (hpack:encoder-memory (connection-encoder connection)))))

(defun shrink-connection (connection)
  "Release the memory that CONNECTION keeps only for speed, if it has no streams. Call this for a
connection that has been idle for long; the memory is allocated again when it is needed."
  (when (zerop (connection-stream-count connection))
    (setf (connection-table connection) #())
    (hpack:forget-repeats (connection-decoder connection))
    (hpack:forget-encoded (connection-encoder connection)))
  nil)

;;; Opening streams

(defconstant +highest-stream-id+ #x7FFFFFFF)

(define-hot (available-streams :inline t) ((connection connection)) (unsigned-byte 32)
  "Return the number of streams that CONNECTION, a client's, may open now. It is the peer's limit
minus the number of open streams, and 0 after either end has sent GOAWAY or the connection is
finished."
  (if (or (connection-closed-p connection) (connection-draining-p connection))
      0
      (min (max 0 (- (connection-peer-max-streams connection)
                     (connection-stream-count connection)))
           (ash (- +highest-stream-id+ (max 0 (connection-highest-id connection))) -1))))

(define-hot open-stream ((connection connection)) (or null stream)
  "Return a new stream of the client end CONNECTION, or NIL if no stream may be opened now
(AVAILABLE-STREAMS). Send the stream's headers, or reset the stream, before you open the next
stream, because identifiers must reach the peer in order (RFC 9113 section 5.1.1)."
  (when (connection-server-p connection)
    (misuse "A server opens no streams: ~S." connection))
  (when (connection-opening connection)
    (misuse "~S was opened and has not sent its headers." (connection-opening connection)))
  (if (zerop (available-streams connection))
      nil
      (let ((id (+ 2 (connection-highest-id connection))))
        (setf (connection-highest-id connection) id
              (connection-opening connection) (take-stream connection id)))))

;;; Ending

(defun send-goaway (connection error-code
                    &key (last-stream-id (last-peer-stream-id connection)) debug)
  "Send GOAWAY: streams above LAST-STREAM-ID, by default the highest that the peer has opened, will
not be processed, and streams that it opens later are ignored. DEBUG is ASCII text for the peer's
log. Running streams continue."
  (unless (connection-closed-p connection)
    (emit-goaway connection (lower-goaway connection last-stream-id) error-code
                 (ascii-octets (or debug ""))))
  nil)

(defun receive-eof (connection)
  "Finish CONNECTION, because the peer has closed its side. ON-RESET is called with :CONNECTION for
every open stream, then ON-CLOSE with the code NO_ERROR. Do nothing if CONNECTION is finished."
  (unless (connection-closed-p connection)
    (end-connection connection +no-error+ "the peer closed the connection")))

(define-hot (connection-stop-reading-p :inline t) ((connection connection)) boolean
  "True if the owner should not read more for CONNECTION until its output has been sent, because the
peer does not read our answers, or the connection is finished."
  (or (connection-closed-p connection)
      (<= (options-max-unsent-octets (connection-options connection)) (output-fill connection))))
