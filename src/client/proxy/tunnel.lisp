;;;; Tunnels: byte channels through a proxy (gRFC A1). A tunnel first holds a dialogue with the
;;;; proxy (proxy-dialogue.lisp). After the dialogue all octets pass unchanged, beginning with those
;;;; received after the proxy's last answer.
;;;;
;;;; States of a tunnel: :new → :talking → :open or :failed.

(in-package #:clgrpc.proxy)

(defconstant +proxy-answer-octets+ 16384
  "The maximum number of octets of a proxy's answer.")

(defstruct (tunnel (:copier nil))
  "The STATE of a byte channel through a proxy; see the head of this file."
  (inner nil :type loop:byte-channel :read-only t) ; the connection to the proxy
  (dialogue nil :type (or null function)) ; the dialogue with the proxy, until the tunnel is open
  (state :new :type (member :new :talking :open :failed)) ; see above
  (output nil :type (or null octets))   ; octets to write to INNER
  (output-start 0 :type index)          ; where the octets that INNER has not accepted begin
  ;; the octets that have come; nil once all are passed on
  (input (make-octets +proxy-answer-octets+) :type (or null octets))
  (input-start 0 :type index)           ; where the octets that are not consumed begin
  (input-end 0 :type index))            ; the end of these octets

(declaim (sb-ext:freeze-type tunnel))

(define-printer (tunnel tunnel)
  "~(~A~)" (tunnel-state tunnel))

(defun fail-tunnel (byte-channel tunnel text)
  "Note that TUNNEL, of BYTE-CHANNEL, has failed for the reason TEXT."
  (setf (loop:byte-channel-failure byte-channel) text
        (tunnel-state tunnel) :failed
        (tunnel-output tunnel) nil
        (tunnel-input tunnel) nil))

(defun go-on-talking (byte-channel tunnel)
  "Continue TUNNEL's dialogue, as far as the received octets allow."
  (loop
    (multiple-value-bind (consumed outcome output)
        (funcall (the function (tunnel-dialogue tunnel)) (tunnel-input tunnel)
                 (tunnel-input-start tunnel) (tunnel-input-end tunnel))
      (incf (tunnel-input-start tunnel) consumed)
      (when output
        (setf (tunnel-output tunnel) output
              (tunnel-output-start tunnel) 0))
      (cond ((stringp outcome) (return (fail-tunnel byte-channel tunnel outcome)))
            (outcome
             (setf (tunnel-dialogue tunnel) nil
                   (tunnel-state tunnel) :open)
             (return))
            ((zerop consumed)
             (setf (tunnel-state tunnel) :talking)
             (return))))))

(defun send-talk (tunnel)
  "Write the dialogue's octets to the inner byte channel. Return 0 if all octets are written, else
the result of the write."
  (let ((output (tunnel-output tunnel)))
    (if (null output)
        0
        (let ((result (loop:byte-channel-write (tunnel-inner tunnel) output
                                               (tunnel-output-start tunnel) (length output))))
          (cond ((minusp result) result)
                ((= (length output) (incf (tunnel-output-start tunnel) result))
                 (setf (tunnel-output tunnel) nil)
                 0)
                (t loop:+wants-write+))))))

(defun take-leftover (tunnel octets start end)
  "Copy the octets that came after the proxy's last answer into OCTETS, from START to END. Return
their number."
  (let* ((input (tunnel-input tunnel))
         (count (min (- end start) (- (tunnel-input-end tunnel) (tunnel-input-start tunnel)))))
    (when input
      (replace octets input :start1 start :start2 (tunnel-input-start tunnel)
                            :end2 (incf (tunnel-input-start tunnel) count))
      (when (= (tunnel-input-start tunnel) (tunnel-input-end tunnel))
        (setf (tunnel-input tunnel) nil)))
    count))

(defun read-open (tunnel octets start end)
  "Read octets from TUNNEL, which is open."
  (let ((count (take-leftover tunnel octets start end)))
    (if (= count (- end start))
        count
        (let ((result (loop:byte-channel-read (tunnel-inner tunnel) octets (+ start count) end)))
          (cond ((zerop count) result)
                ((plusp result) (+ count result))
                (t count))))))          ; INNER will return any other result again

(defun talk (byte-channel tunnel octets start end)
  "Read from TUNNEL by continuing its dialogue until more octets are needed, or TUNNEL is open."
  (when (eq :new (tunnel-state tunnel)) (go-on-talking byte-channel tunnel))
  (loop
    (case (tunnel-state tunnel)
      (:open (return (read-open tunnel octets start end)))
      (:failed (return loop:+broken+)))
    (let ((sent (send-talk tunnel)) (input (tunnel-input tunnel)))
      (when (minusp sent) (return sent))
      (if (= (length input) (tunnel-input-end tunnel))
          (fail-tunnel byte-channel tunnel "the answer of the proxy is too long")
          (let ((result (loop:byte-channel-read (tunnel-inner tunnel) input
                                                (tunnel-input-end tunnel) (length input))))
            (cond ((minusp result) (return result))
                  ((zerop result)
                   (fail-tunnel byte-channel tunnel "the proxy closed the connection"))
                  (t (incf (tunnel-input-end tunnel) result)
                     (go-on-talking byte-channel tunnel))))))))

(defun read-tunnel (byte-channel octets start end)
  (let ((tunnel (loop:byte-channel-state byte-channel)))
    (if (eq :open (tunnel-state tunnel))
        (read-open tunnel octets start end)
        (talk byte-channel tunnel octets start end))))

(defun write-tunnel (byte-channel octets start end)
  (let ((tunnel (loop:byte-channel-state byte-channel)))
    (when (eq :new (tunnel-state tunnel)) (go-on-talking byte-channel tunnel))
    (ecase (tunnel-state tunnel)
      (:open (loop:byte-channel-write (tunnel-inner tunnel) octets start end))
      (:failed loop:+broken+)
      (:talking
       (let ((result (send-talk tunnel)))
         (if (minusp result) result loop:+wants-read+))))))

(sb-ext:define-load-time-global **tunnel**
  (loop:make-byte-channel-kind
   :name "tunnel" :read #'read-tunnel :write #'write-tunnel
   :shutdown (lambda (byte-channel)
               (loop:shut-byte-channel-down (tunnel-inner (loop:byte-channel-state byte-channel))))
   :close (lambda (byte-channel)
            (loop:close-byte-channel (tunnel-inner (loop:byte-channel-state byte-channel))))))

(defun make-tunnel-byte-channel (byte-channel proxy)
  "Return a byte channel through PROXY to its destination, over BYTE-CHANNEL, which is connected to
the proxy and from now on belongs to the returned byte channel. The first read or write begins the
dialogue."
  (loop:make-byte-channel **tunnel** (loop:byte-channel-descriptor byte-channel)
                          (loop:byte-channel-peer byte-channel)
                          (make-tunnel :inner byte-channel :dialogue (make-dialogue proxy))))
