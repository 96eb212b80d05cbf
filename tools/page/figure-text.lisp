;;;; Figures for people: three significant digits, followed by the unit, with thousands separated.

(in-package #:clgrpc.page)

(defun digits-text (value &key (digits 3) short)
  "VALUE, a real, with DIGITS significant digits and commas between thousands. If SHORT is true,
zeros at the end of a fraction are dropped. (digits-text 4.1234) is \"4.12\", (digits-text 41234)
\"41,234\", (digits-text 2 :short t) \"2\"."
  (let* ((magnitude (abs (rational value)))
         (before (loop for power = 1 then (* 10 power)
                       for count from 0
                       when (< magnitude power) return count))
         (places (cond ((zerop magnitude) 0)
                       ((plusp before) (max 0 (- digits before)))
                       ((< magnitude 1/100) (+ digits 1))
                       ((< magnitude 1/10) digits)
                       (t (1- digits)))))
    ;; 9.996 is 10.0, not 10.00
    (when (and (plusp places) (plusp before)
               (>= (round (* magnitude (expt 10 places))) (expt 10 (+ before places))))
      (decf places))
    (multiple-value-bind (whole rest) (floor (round (* magnitude (expt 10 places)))
                                             (expt 10 places))
      (let ((fraction (and (plusp places) (format nil "~V,'0D" places rest))))
        (when short (setf fraction (and fraction (string-right-trim "0" fraction))))
        (format nil "~:[~;-~]~:D~:[.~A~;~]" (and (minusp value) (plusp (+ whole rest))) whole
                (zerop (length fraction)) fraction)))))

(defun count-text (count)
  "The integer COUNT with commas between thousands."
  (format nil "~:D" count))

(defun duration-text (ns &key short)
  "NS nanoseconds, a real, in the unit that suits: \"812 ns\", \"4.12 ms\", \"75.0 s\"; SHORT as in
DIGITS-TEXT."
  (loop for (unit size) in '(("s" 0) ("ns" 1) ("µs" 1000) ("ms" 1000000) ("s" 1000000000))
        when (or (<= (abs ns) (* 999.5 size)) (= size 1000000000))
          return (format nil "~A ~A" (if (and (<= size 1) (integerp ns))
                                         ns
                                         (digits-text (/ ns (max 1 size)) :short short))
                         unit)))

(defun duration-tick (ns)
  "NS on an axis: \"2 ms\", \"0\"."
  (if (zerop ns) "0" (duration-text ns :short t)))

(defun number-tick (value)
  "VALUE on an axis, such as \"0.5\"; for ten thousand and above, such as \"20 k\" or \"1.5 M\"."
  (loop for (unit size) in '(("" 1) (" k" 1000) (" M" 1000000) (" G" 1000000000))
        when (or (< (abs value) (* 1000 size)) (and (= size 1) (< (abs value) 10000))
                 (string= unit " G"))
          return (format nil "~A~A" (digits-text (/ value size) :short t) unit)))

(defun seconds-tick (seconds)
  "SECONDS, a real, on an axis of time: \"45 s\", \"2:30\" for minutes and seconds."
  (multiple-value-bind (minutes rest) (floor (round seconds) 60)
    (if (zerop minutes)
        (format nil "~A s" (digits-text seconds :short t))
        (format nil "~D:~2,'0D" minutes rest))))

(defun octets-text (octets &key short)
  "OCTETS, a real, in the unit that suits: \"512 B\", \"1.50 kB\", \"20.0 MB\"; a kB has 1,000.
SHORT as in DIGITS-TEXT."
  (loop for unit in '("B" "kB" "MB" "GB" "TB")
        for size = 1 then (* 1000 size)
        when (or (< (abs octets) (* 999.5 size)) (string= unit "TB"))
          return (format nil "~A ~A" (if (and (= size 1) (integerp octets))
                                         octets
                                         (digits-text (/ octets size) :short short))
                         unit)))

(defun octets-tick (octets)
  "OCTETS on an axis: \"20 MB\", \"0\"."
  (if (zerop octets) "0" (octets-text octets :short t)))

(defun share-text (share)
  "SHARE, a real of which 1 is all, in per cent: \"12.3 %\"; a share above 0 is never shown as 0."
  (if (< 0 share 1/100000)
      "< 0.001 %"
      (format nil "~A %" (digits-text (* 100 share) :short (or (zerop share) (< 99/100 share))
                                                    ;; near 1 the difference to 1 matters, so more
                                                    ;; digits are shown
                                                    :digits (if (< 99/100 share 1) 5 3)))))
