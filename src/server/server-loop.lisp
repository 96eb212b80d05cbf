;;;; A server loop: the state of one loop of a server. The server loop owns the loop's links; only
;;;; the loop touches it.

(in-package #:clgrpc.server)

(defstruct (server-loop (:include wire:endpoint)
                        (:constructor make-server-loop
                            (&key server loop routes claimers http options encoding max-open
                               account observer))
                        (:copier nil))
  "The state of one loop of a server. Only the loop uses this structure."
  (server nil)                          ; the SERVER
  (routes nil :type route-table)        ; swapped when a service is defined again
  ;; the shared data of plain requests, if the server has handlers for them
  (http nil :type (or null exchange:http-loop))
  ;; the claimers of protocols other than gRPC, see protocol.lisp; as ROUTES
  (claimers '() :type list)
  ;; the encoding of answers, unless a call has another
  (encoding nil :type (or null encoding:encoding))
  ;; the connections of the loop, in no order
  (links (make-array 16 :adjustable t :fill-pointer 0 :initial-element nil) :type vector)
  (begun 0 :type (unsigned-byte 62))    ; how many calls have begun
  (calls 0 :type (unsigned-byte 62))    ; how many calls have ended
  (failed 0 :type (unsigned-byte 62))   ; how many calls ended with another status than :ok
  (call-ns 0 :type (unsigned-byte 62))  ; when the last call began; 0 if none has
  (open 0 :type fixnum)                 ; how many calls are under way, plain requests included
  (max-open 0 :type fixnum)             ; how many calls may be under way
  (request (make-request) :type request) ; a request object for headers that no peer repeats
  ;; the places of calls that wait for room, see reply-room.lisp
  (room-waiters (make-ring) :type ring)
  (probe nil :type (or null wire-call)) ; the waiting call that has begun without room
  (room-timer nil :type (or null timer)) ; when to look for room again
  (pool (http2:make-pool) :type http2:pool)) ; the pool of streams, shared by the connections

(declaim (sb-ext:freeze-type server-loop))

(define-printer (server-loop server-loop)
  "~D links, ~D calls" (server-loop-link-count server-loop) (server-loop-calls server-loop))

(defun server-loop-call-counts (server-loop)
  "Return four values: the numbers of SERVER-LOOP's calls that have begun, that have succeeded and
that have failed; and the time when the last call began, 0 before the first call. On its loop."
  (values (server-loop-begun server-loop)
          (- (server-loop-calls server-loop) (server-loop-failed server-loop))
          (server-loop-failed server-loop)
          (server-loop-call-ns server-loop)))

;;; The links, in no order: thousands may come and go at once

(defun server-loop-link-count (server-loop)
  (length (server-loop-links server-loop)))

(defun add-link (server-loop link)
  (setf (server-link-place link) (vector-push-extend link (server-loop-links server-loop))))

(defun remove-link (server-loop link)
  "Remove LINK from the links of SERVER-LOOP: the last link takes LINK's place."
  (let* ((links (server-loop-links server-loop))
         (place (server-link-place link)))
    ;; a link that could not be opened was never added
    (when (and (< place (length links)) (eq link (aref links place)))
      (let* ((end (1- (length links)))
             (last (aref links end)))
        (setf (aref links place) last
              (server-link-place last) place
              (aref links end) nil
              (fill-pointer links) end)))))

(defun map-links (function server-loop)
  "Call FUNCTION with each link of SERVER-LOOP; FUNCTION may end links."
  (map nil function (copy-seq (server-loop-links server-loop))))
